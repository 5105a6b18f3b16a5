/*
 * System calls by instructions of this program, mixed with calls of the C library on the same
 * sockets. Each part prints one line, which must be the same on the kernel and on Weft.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HAND(number, ...) hand_(number, (long[6]){ __VA_ARGS__ })
#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("line %d: not %s (errno %d)\n", __LINE__, #condition, errno);       \
			fflush(stdout);                                                            \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static long hand_(long number, const long a[6])
{
	register long r10 __asm__("r10") = a[3], r8 __asm__("r8") = a[4], r9 __asm__("r9") = a[5];
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define P(place) ((long)(place))

static int listener;
static struct sockaddr_in address = { .sin_family = AF_INET };

/* Makes a connection and uses it, so that it moves to memory if it can. */
static void connect_pair(int pair[2])
{
	char byte = 'w';

	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	REQUIRE(!connect(pair[0], (struct sockaddr *)&address, sizeof address));
	pair[1] = accept(listener, NULL, NULL);
	for (int i = 0; i < 8; i++) {
		REQUIRE(write(pair[0], &byte, 1) == 1 && read(pair[1], &byte, 1) == 1);
		REQUIRE(write(pair[1], &byte, 1) == 1 && read(pair[0], &byte, 1) == 1);
	}
}

static void close_pair(const int pair[2])
{
	close(pair[0]);
	close(pair[1]);
}

static void moves_bytes(void)
{
	char room[64];
	struct iovec parts[2] = { { "ab", 2 }, { "cd", 2 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	int pair[2];

	connect_pair(pair);
	REQUIRE(HAND(SYS_write, pair[0], P("one"), 3) == 3 && read(pair[1], room, 64) == 3);
	REQUIRE(!memcmp(room, "one", 3));
	REQUIRE(write(pair[0], "two", 3) == 3 && HAND(SYS_read, pair[1], P(room), 64) == 3);
	REQUIRE(!memcmp(room, "two", 3));
	REQUIRE(HAND(SYS_sendto, pair[1], P("three"), 5, MSG_NOSIGNAL) == 5);
	REQUIRE(HAND(SYS_recvfrom, pair[0], P(room), 64, MSG_PEEK) == 5);
	REQUIRE(recv(pair[0], room, 64, 0) == 5 && !memcmp(room, "three", 5));
	REQUIRE(HAND(SYS_sendmsg, pair[0], P(&message), 0) == 4);
	REQUIRE(HAND(SYS_recvfrom, pair[1], P(room), 64, MSG_DONTWAIT) == 4);
	REQUIRE(!memcmp(room, "abcd", 4));
	REQUIRE(HAND(SYS_recvfrom, pair[1], P(room), 64, MSG_DONTWAIT) == -EAGAIN);
	errno = 77;
	REQUIRE(HAND(SYS_read, -1, P(room), 1) == -EBADF && errno == 77);
	close_pair(pair);
	puts("bytes");
}

unsigned long before_call[4] = { 1, 2, 3, 4 };
volatile unsigned long after_call[4], kept[7];

/* System calls preserve general and vector registers, flags and the red zone. */
static void leaves_registers(void)
{
	int pair[2];

	connect_pair(pair);
	for (int way = 0; way < 2; way++) {
		long result, number = way ? SYS_write : SYS_getppid;
		unsigned char carry;

		__asm__ volatile("movdqu before_call(%%rip), %%xmm0\n"
				 "movdqu 16+before_call(%%rip), %%xmm15\n"
				 "mov $0x1234, %%r12\n mov $0x2345, %%r13\n mov $0x3456, %%r14\n"
				 "mov $0x4567, %%r15\n mov $0x5678, %%r10\n"
				 "movq $0x99, -8(%%rsp)\n movq $0x98, -128(%%rsp)\n"
				 "std\n stc\n"
				 "syscall\n"
				 "setc %[carry]\n cld\n"
				 "movdqu %%xmm0, after_call(%%rip)\n"
				 "movdqu %%xmm15, 16+after_call(%%rip)\n"
				 "mov %%r12, kept(%%rip)\n mov %%r13, 8+kept(%%rip)\n"
				 "mov %%r14, 16+kept(%%rip)\n mov %%r15, 24+kept(%%rip)\n"
				 "mov %%r10, 32+kept(%%rip)\n"
				 "mov -8(%%rsp), %%r12\n mov %%r12, 40+kept(%%rip)\n"
				 "mov -128(%%rsp), %%r12\n mov %%r12, 48+kept(%%rip)\n"
				 : "=a"(result), [carry] "=&b"(carry)
				 : "a"(number), "D"(pair[0]), "S"("x"), "d"(1)
				 : "rcx", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm15",
				   "memory", "cc");
		REQUIRE(result == (way ? 1 : getppid()));
		REQUIRE(!memcmp(before_call, (void *)after_call, sizeof after_call) && carry == 1);
		REQUIRE(kept[0] == 0x1234 && kept[1] == 0x2345 && kept[2] == 0x3456);
		REQUIRE(kept[3] == 0x4567 && kept[4] == 0x5678);
		REQUIRE(kept[5] == 0x99 && kept[6] == 0x98);
	}
	close_pair(pair);
	puts("registers");
}

static void changes_descriptors(void)
{
	struct sockaddr_in peer = address;
	int pair[2], copy, other, made, taken;
	char room[8];

	connect_pair(pair);
	copy = HAND(SYS_dup, pair[0]);
	REQUIRE(HAND(SYS_close, pair[0]) == 0 && write(copy, "a", 1) == 1);
	REQUIRE(read(pair[1], room, 8) == 1);
	other = HAND(SYS_fcntl, copy, F_DUPFD, 100);
	REQUIRE(other >= 100 && HAND(SYS_write, other, P("b"), 1) == 1);
	REQUIRE(HAND(SYS_dup3, other, 90, O_CLOEXEC) == 90 && close(other) == 0);
	REQUIRE(HAND(SYS_dup2, 90, copy) == copy && HAND(SYS_close, 90) == 0);
	REQUIRE(HAND(SYS_read, pair[1], P(room), 8) == 1 && room[0] == 'b');
	REQUIRE(HAND(SYS_shutdown, copy, SHUT_WR) == 0 && read(pair[1], room, 8) == 0);
	REQUIRE(write(pair[1], "c", 1) == 1 && read(copy, room, 8) == 1);
	REQUIRE(HAND(SYS_close_range, pair[1], pair[1], 0) == 0 && read(copy, room, 8) == 0);
	close(copy);

	made = HAND(SYS_socket, AF_INET, SOCK_STREAM, 0);
	REQUIRE(HAND(SYS_connect, made, P(&peer), sizeof peer) == 0);
	taken = HAND(SYS_accept4, listener, 0, 0, SOCK_CLOEXEC);
	for (int i = 0; i < 8; i++) {
		REQUIRE(HAND(SYS_write, made, P("d"), 1) == 1 && read(taken, room, 8) == 1);
		REQUIRE(write(taken, "e", 1) == 1 && HAND(SYS_read, made, P(room), 8) == 1);
	}
	REQUIRE(room[0] == 'e' && HAND(SYS_close, made) == 0 && read(taken, room, 8) == 0);
	close(taken);
	puts("descriptors");
}

static void waits(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = 7 }, found[4];
	struct timespec soon = { .tv_nsec = 2000000 };
	struct pollfd set;
	char room[8];
	int pair[2], epoll;

	connect_pair(pair);
	epoll = HAND(SYS_epoll_create1, 0);
	REQUIRE(HAND(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, pair[1], P(&event)) == 0);
	REQUIRE(HAND(SYS_epoll_wait, epoll, P(found), 4, 0) == 0);
	REQUIRE(HAND(SYS_write, pair[0], P("x"), 1) == 1);
	REQUIRE(HAND(SYS_epoll_wait, epoll, P(found), 4, 1000) == 1 && found[0].data.u32 == 7);
	REQUIRE(epoll_wait(epoll, found, 4, 0) == 1);
	set = (struct pollfd){ .fd = pair[1], .events = POLLIN };
	REQUIRE(HAND(SYS_poll, P(&set), 1, 1000) == 1 && set.revents == POLLIN);
	REQUIRE(HAND(SYS_read, pair[1], P(room), 8) == 1);
	REQUIRE(HAND(SYS_epoll_pwait, epoll, P(found), 4, 1, 0, 8) == 0);
	REQUIRE(HAND(SYS_ppoll, P(&set), 1, P(&soon), 0, 8) == 0);
	REQUIRE(soon.tv_sec == 0 && soon.tv_nsec == 0);
	REQUIRE(HAND(SYS_epoll_ctl, epoll, EPOLL_CTL_DEL, pair[1], 0) == 0);
	close(epoll);
	close_pair(pair);
	puts("waiting");
}

static volatile sig_atomic_t handled;
static int signal_pair[2];

/* Uses the connection from a signal handler, which may run on an alternate stack. */
static void handle(int number)
{
	char byte;

	(void)number;
	handled++;
	REQUIRE(HAND(SYS_write, signal_pair[0], P("s"), 1) == 1);
	REQUIRE(HAND(SYS_read, signal_pair[1], P(&byte), 1) == 1 && byte == 's');
}

static void set_handler(int number, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	sigfillset(&action.sa_mask);
	REQUIRE(!sigaction(number, &action, NULL));
	action.sa_flags = 0;
	REQUIRE(!sigaction(number, NULL, &action) && action.sa_handler == handler);
	REQUIRE((action.sa_flags & ~0x04000000) == flags);
	REQUIRE(sigismember(&action.sa_mask, SIGSYS));
}

static volatile int has_ended;

/* Sends signals until the call has ended: a signal that comes before it sleeps does not end it. */
static void *send_signals(void *thread)
{
	while (!has_ended) {
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
		usleep(20000);
	}
	return NULL;
}

static void *write_later(void *fd)
{
	while (!handled)
		usleep(1000);
	usleep(20000);
	REQUIRE(HAND(SYS_write, *(int *)fd, P("late"), 4) == 4);
	return NULL;
}

static void is_interrupted(void)
{
	static char small[16384] __attribute__((aligned(64)));
	stack_t stack = { .ss_sp = small, .ss_size = sizeof small }, none = { .ss_flags = SS_DISABLE };
	pthread_t self = pthread_self(), sender, writer;
	char room[8];
	int pair[2];

	connect_pair(pair);
	connect_pair(signal_pair);
	for (int flags = 0; flags < 2; flags++) {
		int on_stack = flags ? SA_ONSTACK : 0;

		REQUIRE(!sigaltstack(flags ? &stack : &none, NULL));
		set_handler(SIGUSR1, handle, on_stack);
		handled = has_ended = 0;
		REQUIRE(!pthread_create(&sender, NULL, send_signals, &self));
		REQUIRE(HAND(SYS_read, pair[1], P(room), 8) == -EINTR && handled);
		has_ended = 1;
		pthread_join(sender, NULL);

		set_handler(SIGUSR1, handle, on_stack | SA_RESTART);
		handled = has_ended = 0;
		REQUIRE(!pthread_create(&sender, NULL, send_signals, &self));
		REQUIRE(!pthread_create(&writer, NULL, write_later, &pair[0]));
		REQUIRE(HAND(SYS_read, pair[1], P(room), 8) == 4 && !memcmp(room, "late", 4));
		has_ended = 1;
		pthread_join(sender, NULL);
		pthread_join(writer, NULL);
	}
	REQUIRE(!sigaltstack(&none, NULL));
	close_pair(signal_pair);
	close_pair(pair);
	puts("interrupted");
}

static sigjmp_buf back;

static void jump(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

static void is_left_by_a_jump(void)
{
	struct itimerval soon = { .it_value.tv_usec = 20000 };
	char room[8];
	int pair[2];

	connect_pair(pair);
	set_handler(SIGALRM, jump, 0);
	for (volatile int i = 0; i < 20; i++) {
		soon.it_value.tv_usec = i % 2 ? 20000 : 1;
		if (!sigsetjmp(back, 1)) {
			REQUIRE(!setitimer(ITIMER_REAL, &soon, NULL));
			HAND(SYS_read, pair[1], P(room), 8);
			REQUIRE(!"read returned");
		}
		REQUIRE(HAND(SYS_write, pair[0], P("jump"), 4) == 4);
		REQUIRE(read(pair[1], room, 8) == 4);
	}
	signal(SIGALRM, SIG_DFL);
	close_pair(pair);
	puts("jumps");
}

static void count_signal(int number)
{
	(void)number;
	handled++;
}

static void masks(void)
{
	unsigned long all = ~0UL, none = 0, old = 0;
	sigset_t set, before;
	int pair[2];
	char room[8];

	connect_pair(pair);
	signal(SIGUSR2, count_signal);
	handled = 0;
	sigfillset(&set);
	REQUIRE(!sigprocmask(SIG_SETMASK, &set, &before));
	REQUIRE(HAND(SYS_write, pair[0], P("x"), 1) == 1 && read(pair[1], room, 8) == 1);
	raise(SIGUSR2);
	REQUIRE(!handled && !sigprocmask(SIG_BLOCK, NULL, &set) && sigismember(&set, SIGSYS));
	REQUIRE(HAND(SYS_rt_sigprocmask, SIG_SETMASK, P(&none), P(&old), 8) == 0);
	REQUIRE(handled == 1 && old >> (SIGSYS - 1) & 1 && old >> (SIGUSR2 - 1) & 1);
	REQUIRE(HAND(SYS_rt_sigprocmask, SIG_BLOCK, P(&all), 0, 8) == 0);
	REQUIRE(!pthread_sigmask(SIG_BLOCK, NULL, &set) && sigismember(&set, SIGSYS));
	raise(SIGUSR2);
	REQUIRE(handled == 1 && HAND(SYS_write, pair[0], P("x"), 1) == 1);
	REQUIRE(HAND(SYS_rt_sigsuspend, P(&none), 8) == -EINTR && handled == 2);
	REQUIRE(!sigprocmask(SIG_SETMASK, &before, NULL));
	REQUIRE(!sigprocmask(SIG_BLOCK, NULL, &set) && !sigismember(&set, SIGSYS));
	close_pair(pair);
	puts("masks");
}

struct kernel_action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};

__attribute__((naked)) static void restore(void)
{
	__asm__("mov $15, %eax\n syscall");
}

static void actions_by_hand(void)
{
	struct kernel_action action = { count_signal, 0x04000000, restore, ~0UL }, old;
	volatile int rounds = 3;

	REQUIRE(HAND(SYS_rt_sigaction, SIGUSR2, P(&action), 0, 8) == 0);
	handled = 0;
	while (rounds--)
		raise(SIGUSR2);
	REQUIRE(handled == 3);
	REQUIRE(HAND(SYS_rt_sigaction, SIGUSR2, 0, P(&old), 8) == 0);
	REQUIRE(old.handler == count_signal && old.mask >> (SIGSYS - 1) & 1);
	/* The program may also use SIGSYS itself. */
	REQUIRE(signal(SIGSYS, count_signal) == SIG_DFL);
	raise(SIGSYS);
	REQUIRE(handled == 4 && signal(SIGSYS, SIG_IGN) == count_signal);
	raise(SIGSYS);
	REQUIRE(handled == 4 && signal(SIGSYS, SIG_DFL) == SIG_IGN);
	puts("actions");
}

static void has_children(void)
{
	int pair[2], status;
	char room[16];
	pid_t child;

	connect_pair(pair);
	for (int way = 0; way < 4; way++) {
		switch (way) {
		case 0:
			child = HAND(SYS_fork);
			break;
		case 1:
			child = HAND(SYS_clone, SIGCHLD);
			break;
		case 2:
			child = HAND(SYS_clone, CLONE_VFORK | SIGCHLD);
			break;
		default:
			child = fork();
		}
		if (!child) {
			REQUIRE(HAND(SYS_write, pair[0], P("child"), 5) == 5);
			HAND(SYS_exit_group, 3);
		}
		REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
		REQUIRE(HAND(SYS_read, pair[1], P(room), 16) == 5 && !memcmp(room, "child", 5));
		REQUIRE(HAND(SYS_write, pair[0], P("x"), 1) == 1 && read(pair[1], room, 8) == 1);
	}
	close_pair(pair);
	connect_pair(pair);
	/* The child uses its parent's memory and stack. */
	child = HAND(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD);
	if (!child)
		HAND(SYS_exit, 5);
	REQUIRE(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
	REQUIRE(HAND(SYS_write, pair[0], P("x"), 1) == 1 && read(pair[1], room, 8) == 1);
	close_pair(pair);
	puts("children");
}

static pthread_mutex_t connecting = PTHREAD_MUTEX_INITIALIZER;

static void *talk(void *unused)
{
	char bytes[3000], room[3000];
	int pair[2];

	(void)unused;
	pthread_mutex_lock(&connecting);
	connect_pair(pair);
	pthread_mutex_unlock(&connecting);
	for (int round = 0; round < 2000; round++) {
		int length = 1 + round * 7 % 3000, received = 0;

		memset(bytes, round, length);
		if (round % 2)
			REQUIRE(HAND(SYS_write, pair[0], P(bytes), length) == length);
		else
			REQUIRE(write(pair[0], bytes, length) == length);
		while (received < length) {
			long more = round % 3 ? HAND(SYS_read, pair[1], P(room + received), 3000)
					      : read(pair[1], room + received, 3000);

			REQUIRE(more > 0);
			received += more;
		}
		REQUIRE(received == length && !memcmp(bytes, room, length));
	}
	close_pair(pair);
	return NULL;
}

static void has_threads(void)
{
	pthread_attr_t attributes;
	pthread_t threads[4];

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 65536);
	for (int i = 0; i < 4; i++)
		REQUIRE(!pthread_create(&threads[i], i % 2 ? &attributes : NULL, talk, NULL));
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	puts("threads");
}

#define EARLY 5
static int sleepers[2];
static volatile int armed_early;

/* A thread that falls asleep before the process has a socket, and sleeps until it has one. */
static void *sleep_early(void *kind)
{
	struct pollfd set = { .fd = sleepers[0], .events = POLLIN };
	struct timespec long_time = { .tv_nsec = 300000000 }, until;
	struct timeval limit = { .tv_usec = 90000 };
	sem_t never;
	int pair[2];
	char byte;

	__atomic_add_fetch(&armed_early, 1, __ATOMIC_SEQ_CST);
	switch (P(kind)) {
	case 0:
		REQUIRE(poll(&set, 1, -1) == 1);
		break;
	case 1:
		REQUIRE(read(sleepers[0], &byte, 1) == 1);
		break;
	case 2:
		REQUIRE(!sem_init(&never, 0, 0) && !clock_gettime(CLOCK_REALTIME, &until));
		until.tv_sec++;
		REQUIRE(sem_timedwait(&never, &until) < 0 && errno == ETIMEDOUT);
		break;
	case 3: /* A signal would end this call: Weft must not send one before it has ended. */
		REQUIRE(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		REQUIRE(!setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
		REQUIRE(recv(pair[0], &byte, 1, 0) < 0 && errno == EAGAIN);
		break;
	default:
		REQUIRE(!nanosleep(&long_time, NULL));
	}
	return talk(NULL);
}

/* The kernel's vdso reads clocks of processor time by a system call of its own. */
static void reads_clocks(void)
{
	struct timespec first, second, all;
	clockid_t own;
	clock_t ticks;

	REQUIRE(!clock_gettime(CLOCK_THREAD_CPUTIME_ID, &first));
	REQUIRE(!pthread_getcpuclockid(pthread_self(), &own));
	REQUIRE(!clock_gettime(own, &second));
	REQUIRE(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &all));
	ticks = clock();
	REQUIRE(first.tv_sec * 1000000000 + first.tv_nsec <=
		second.tv_sec * 1000000000 + second.tv_nsec);
	REQUIRE(second.tv_sec <= all.tv_sec);
	REQUIRE(all.tv_sec * CLOCKS_PER_SEC + all.tv_nsec / 1000 <= ticks);
	REQUIRE(ticks <= (all.tv_sec + 100) * CLOCKS_PER_SEC);
	errno = 0;
	REQUIRE(clock_gettime(99, &all) == -1 && errno == EINVAL);
	REQUIRE(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, (void *)8) == -1 && errno == EFAULT);
	puts("reads clocks");
}

static void refuses_rings(void)
{
	char parameters[120] = { 0 };
	long ring = HAND(SYS_io_uring_setup, 8, P(parameters));

	fprintf(stderr, "ring: %s\n", ring == -EPERM ? "EPERM" : "other");
	if (ring >= 0)
		close(ring);
}

int main(int count, char **words)
{
	socklen_t length = sizeof address;
	pthread_t early[EARLY];

	(void)words;
	REQUIRE(!pipe(sleepers));
	for (long i = 0; i < EARLY; i++)
		REQUIRE(!pthread_create(&early[i], NULL, sleep_early, (void *)i));
	while (armed_early < EARLY)
		sched_yield();
	usleep(50000);

	listener = socket(AF_INET, SOCK_STREAM, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	REQUIRE(!bind(listener, (struct sockaddr *)&address, sizeof address));
	REQUIRE(!listen(listener, 16));
	REQUIRE(!getsockname(listener, (struct sockaddr *)&address, &length));
	pthread_mutex_lock(&connecting);
	moves_bytes();
	leaves_registers();
	changes_descriptors();
	waits();
	is_interrupted();
	is_left_by_a_jump();
	masks();
	actions_by_hand();
	has_children();
	reads_clocks();
	refuses_rings();
	REQUIRE(write(sleepers[1], "xx", 2) == 2);
	pthread_mutex_unlock(&connecting);
	has_threads();
	for (int i = 0; i < EARLY; i++)
		pthread_join(early[i], NULL);
	puts("done");
	return count > 9;
}
