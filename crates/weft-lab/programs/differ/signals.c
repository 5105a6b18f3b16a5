/* Steps with signals: masks, handlers, alternate stacks, and sleeps that a signal ends. */
#include "world.h"

#include <sched.h>
#include <sys/mman.h>
#include <threads.h>

/* alarm after=MS: raises a signal later, which interrupts calls. */
static void do_alarm(const struct step *step)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	long after = number_of(step, "after", 5);
	struct itimerspec time = { .it_value = { 0, after * 1000000L } };
	timer_t timer;

	if (timer_create(CLOCK_MONOTONIC, &event, &timer))
		note_result(-1);
	else
		note_result(timer_settime(timer, 0, &time, NULL));
}

/* signals: notes which signals this process has got since the last such step. */
static void do_signals(const struct step *step)
{
	static const int numbers[] = { SIGIO, SIGURG, SIGUSR1, SIGUSR2, SIGALRM };
	int pid = world->actors[own].pid;
	bool any;

	(void)step;
	/* A signal arrives a moment after its cause. */
	usleep(1000);
	for (int i = 0; i < 5; i++) {
		any = false;
		for (int k = 0; k < ACTORS; k++)
			if (world->actors[k].pid == pid &&
			    atomic_exchange(&world->actors[k].signals[numbers[i]], 0))
				any = true;
		if (any)
			note(" SIG%s", sigabbrev_np(numbers[i]));
	}
	note(" = ok");
}

/* Programs still call deprecated functions. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* The size of a signal set in the kernel's interface. */
enum { SET_BYTES = 8 };

static int signal_of(const struct step *step)
{
	return is(step, "signal", "USR2") ? SIGUSR2 : is(step, "signal", "SYS") ? SIGSYS : SIGUSR1;
}

/* mask how=sigprocmask|pthread_sigmask|sighold|sigblock|sigsetmask signal=USR1|USR2|SYS on=0|1 */
static void do_mask(const struct step *step)
{
	bool on = number_of(step, "on", 1);
	int number = signal_of(step), how = on ? SIG_BLOCK : SIG_UNBLOCK;
	sigset_t set, old;
	long result = 0;

	sigemptyset(&set);
	sigemptyset(&old);
	sigaddset(&set, number);
	if (is(step, "how", "pthread_sigmask"))
		result = pthread_sigmask(how, &set, &old);
	else if (is(step, "how", "sighold"))
		result = on ? sighold(number) : sigrelse(number);
	else
		result = BY(way_of(step), sigprocmask(how, &set, &old), SYS_rt_sigprocmask,
			    (long)how, &set, &old, (long)SET_BYTES);
	note(" was %d", sigismember(&old, number));
	note_result(result);
}

/* handler how=sigaction|signal|bsd_signal|sysv_signal signal= what=handler|ignore|default
 * restart=0|1 stack=0|1 */
static void do_handler(const struct step *step)
{
	int number = signal_of(step);
	void (*handler)(int) = is(step, "what", "ignore")    ? SIG_IGN
			       : is(step, "what", "default") ? SIG_DFL
							     : on_signal;
	struct sigaction action = { .sa_handler = handler }, old = { .sa_handler = SIG_DFL };
	void (*before)(int) = SIG_ERR;
	long result = 0;

	action.sa_flags = (number_of(step, "restart", 0) ? SA_RESTART : 0) |
			  (number_of(step, "stack", 0) ? SA_ONSTACK : 0);
	if (is(step, "how", "signal"))
		before = signal(number, handler);
	else if (is(step, "how", "sysv_signal"))
		before = sysv_signal(number, handler);
	else
		result = sigaction(number, &action, &old);
	if (!is(step, "how", "sigaction"))
		result = before == SIG_ERR ? -1 : 0;
	else
		before = old.sa_handler;
	note(" was %s", before == SIG_DFL   ? "default"
			: before == SIG_IGN ? "ignored"
			: before == on_signal ? "ours"
					      : "another");
	note_result(result);
}

/* sigstack: sets an alternate stack for this thread's handlers. */
static void do_sigstack(const struct step *step)
{
	size_t size = 64 * 1024;
	stack_t stack = { .ss_size = size };

	(void)step;
	stack.ss_sp = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	note_result(sigaltstack(&stack, NULL));
}

/* sleep how=nanosleep|usleep|clock_nanosleep|thrd_sleep|pause|sigsuspend|sigtimedwait timeout=MS:
 * sleeps until the timeout or a signal. */
static void do_sleep(const struct step *step)
{
	long milliseconds = number_of(step, "timeout", 10);
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 }, left = { 0 };
	sigset_t set;
	long result;

	sigemptyset(&set);
	errno = 0;
	if (is(step, "how", "usleep")) {
		result = usleep((useconds_t)milliseconds * 1000);
	} else if (is(step, "how", "pause")) {
		result = pause();
	} else if (is(step, "how", "sigsuspend")) {
		result = BY(way_of(step), sigsuspend(&set), SYS_rt_sigsuspend, &set,
			    (long)SET_BYTES);
	} else if (is(step, "how", "sigtimedwait")) {
		sigaddset(&set, signal_of(step));
		result = sigtimedwait(&set, NULL, &time);
	} else if (is(step, "how", "thrd_sleep")) {
		result = thrd_sleep(&time, &left);
		note(" = %ld%s", result, left.tv_sec ? " left" : "");
		return;
	} else if (is(step, "how", "clock_nanosleep")) {
		result = clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &left);
		note(" = %ld%s", result, left.tv_sec ? " left" : "");
		return;
	} else {
		result = BY(way_of(step), nanosleep(&time, &left), SYS_nanosleep, &time, &left);
		note("%s", left.tv_sec ? " left" : "");
	}
	note_result(result);
}

const struct named of_signals[] = {
	{ "alarm", do_alarm },	   { "signals", do_signals }, { "mask", do_mask },
	{ "handler", do_handler }, { "sigstack", do_sigstack }, { "sleep", do_sleep },
	{ NULL, NULL },
};
