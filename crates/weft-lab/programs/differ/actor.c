/* An actor: a thread that waits for its turn, does one step, and notes the result. */
#include "world.h"

/* The descriptor that the handler of SIGUSR1 closes. */
int closed_in_handler = -1;

static const struct named *const tables[] = { transfers, descriptors, waits,	processes,
					      openings,	 bulk,	      any_calls, of_options, of_messages,
					      of_signals, of_others,  of_limits,	  streams };

void on_signal(int number)
{
	int error = errno;

	atomic_fetch_add(&world->actors[own].signals[number], 1);
	if (number == SIGUSR1 && closed_in_handler >= 0) {
		close(closed_in_handler);
		closed_in_handler = -1;
	}
	errno = error;
}

void catch_signals(void)
{
	static const int interrupting[] = { SIGUSR1, SIGALRM }, restarting[] = { SIGUSR2, SIGIO,
										 SIGURG, SIGPIPE };
	struct sigaction action = { .sa_handler = on_signal };

	for (int i = 0; i < 2; i++)
		sigaction(interrupting[i], &action, NULL);
	action.sa_flags = SA_RESTART;
	for (int i = 0; i < 4; i++)
		sigaction(restarting[i], &action, NULL);
}

static operation *find(const char *name)
{
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
		for (const struct named *entry = tables[i]; entry->name; entry++)
			if (!strcmp(entry->name, name))
				return entry->run;
	return NULL;
}

static void tell_conductor(struct actor *actor, enum turn turn)
{
	atomic_store(&actor->turn, turn);
	atomic_fetch_add(&world->events, 1);
	raw(SYS_futex, (long)&world->events, FUTEX_WAKE, 1, 0, 0, 0);
}

void register_actor(int number)
{
	struct actor *actor = &world->actors[number];
	char path[64] = "";

	own = number;
	/* In another PID namespace getpid() returns a number that the conductor cannot use. */
	raw(SYS_readlink, (long)"/proc/thread-self", (long)path, sizeof path - 1, 0, 0, 0);
	sscanf(path, "%d/task/%d", &actor->pid, &actor->tid);
	if (atomic_load(&actor->turn) == GIVEN) {
		/* The process has executed a new program, which completes the step. */
		actor->notes = 0;
		note(" = ok");
		tell_conductor(actor, DONE);
	} else {
		tell_conductor(actor, IDLE);
	}
}

void act(int number)
{
	struct actor *actor = &world->actors[number];
	struct step step;
	operation *run;
	uint32_t seen, pipes;

	for (;;) {
		while ((seen = atomic_load(&actor->turn)) != GIVEN)
			raw(SYS_futex, (long)&actor->turn, FUTEX_WAIT, seen, 0, 0, 0);
		read_step(&step, actor->step);
		actor->notes = 0;
		actor->text[0] = 0;
		pipes = atomic_load(&actor->signals[SIGPIPE]);
		run = step.count > 1 ? find(step.words[1]) : NULL;
		errno = 0;
		if (run)
			run(&step);
		else
			note(" = no such operation");
		/* A ring sends without SIGPIPE, but the call that replaces it raises the signal. */
		if (atomic_load(&actor->signals[SIGPIPE]) != pipes && way_of(&step) != URING)
			note(" SIGPIPE");
		tell_conductor(actor, DONE);
	}
}
