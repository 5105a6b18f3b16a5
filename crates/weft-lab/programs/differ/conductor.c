/* The conductor gives each step to its actor, waits until the step is done or asleep, and prints
 * the results. On Weft it knows from the kernel's run which steps end when, and waits for these. */
#include "world.h"

#include <ctype.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum {
	EARLY_US = 1000,
	CHECK_US = 60,
	QUIET_CHECKS = 3,
	SETTLE_MAX_MS = 15000,
	SLOW_MS = 2500,
	/* Records that fill a connection wait for the kernel's delayed acknowledgements. */
	RECORDS_MS = 300,
	/* How long a step on Weft may spin before it sleeps, on a busy machine. */
	SPIN_MAX_MS = 200,
	/* A child that reads may sleep for ever. */
	READ_MS = 150,
	/* How long a thread may be missing that executes a program: it becomes the process's first
	 * thread. */
	EXEC_MS = 500,
};

/* For each step, the step after which it ended on the kernel, or -1 if it did not end. */
static int expected_end[STEPS];
static bool expecting, stopped;
/* How long a step may take on Weft if it ends at once on the kernel. */
static int late_ms = 1500;
static int64_t begun[ACTORS];
static int sleep_max[ACTORS];

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void wait_event(uint32_t seen, int us)
{
	struct timespec limit = { 0, us * 1000L };

	raw(SYS_futex, (long)&world->events, FUTEX_WAIT, seen, (long)&limit, 0, 0);
}

static bool is_pending(const struct actor *actor)
{
	uint32_t turn = atomic_load(&actor->turn);

	return turn == GIVEN || turn == DONE;
}

/* Returns the state of a thread from /proc: 'S', 'R', 'Z', ..., or 0 if it has ended. */
static char state_of(int number)
{
	static struct {
		int tid, fd;
	} open_files[ACTORS];
	const struct actor *actor = &world->actors[number];
	char path[64], text[256] = "", *end;

	if (open_files[number].tid != actor->tid) {
		if (open_files[number].tid && open_files[number].fd >= 0)
			raw(SYS_close, open_files[number].fd, 0, 0, 0, 0, 0);
		snprintf(path, sizeof path, "/proc/%d/task/%d/stat", actor->pid, actor->tid);
		open_files[number].tid = actor->tid;
		open_files[number].fd = (int)raw(SYS_openat, AT_FDCWD, (long)path,
						 O_RDONLY | O_CLOEXEC, 0, 0, 0);
	}
	if (raw(SYS_pread64, open_files[number].fd, (long)text, sizeof text - 1, 0, 0, 0) <= 0)
		return 0;
	end = strrchr(text, ')');
	return end && end[1] ? end[2] : 0;
}

/* Waits until the whole process has ended and its descriptors are closed. */
static void wait_for_end(int pid)
{
	long pidfd = raw(SYS_pidfd_open, pid, 0, 0, 0, 0, 0);
	struct pollfd poll = { .fd = (int)pidfd, .events = POLLIN };
	struct timespec limit = { 2, 0 };

	if (pidfd < 0)
		return;
	raw(SYS_ppoll, (long)&poll, 1, (long)&limit, 0, 0, 0);
	raw(SYS_close, pidfd, 0, 0, 0, 0, 0);
}

static void forget_process(int pid, int except)
{
	for (int i = 0; i < ACTORS; i++)
		if (i != except && world->actors[i].pid == pid &&
		    atomic_load(&world->actors[i].turn) != ABSENT)
			atomic_store(&world->actors[i].turn, GONE);
}

static bool line_is(int index, const char *op)
{
	struct step step;

	read_step(&step, index);
	return step.count > 1 && !strcmp(step.words[1], op);
}

/* If several threads wait in equal steps that any of them may do (`4|5`), any of them may be woken.
 * The oldest step then counts as done. */
static void choose_oldest(struct actor *done)
{
	const char *text = world->program + world->lines[done->step];
	size_t length = strcspn(text, "\n");

	if (!memchr(text, '|', strcspn(text, " \n")))
		return;
	for (int i = 0; i < ACTORS; i++) {
		struct actor *other = &world->actors[i];
		const char *line = world->program + world->lines[other->step];
		int step = other->step;

		if (!is_pending(other) || step >= done->step || strcspn(line, "\n") != length ||
		    memcmp(line, text, length))
			continue;
		other->step = done->step;
		done->step = step;
	}
}

struct ended {
	int step;
	char text[TEXT];
};

static int by_step(const void *left, const void *right)
{
	return ((const struct ended *)left)->step - ((const struct ended *)right)->step;
}

static int collect(struct ended *ended, int count)
{
	for (int i = 0; i < ACTORS && count < STEPS; i++) {
		struct actor *actor = &world->actors[i];
		uint32_t turn = atomic_load(&actor->turn);
		char state;

		if (turn == DONE) {
			choose_oldest(actor);
			ended[count].step = actor->step;
			strcpy(ended[count++].text, actor->text);
			if (line_is(actor->step, "exec"))
				forget_process(actor->pid, i);
			atomic_store(&actor->turn, IDLE);
			continue;
		}
		if (turn != GIVEN)
			continue;
		state = state_of(i);
		if (state && state != 'Z' && state != 'X')
			continue;
		if (atomic_load(&actor->turn) == DONE)
			continue;
		if (line_is(actor->step, "exec") && now_us() - begun[i] < EXEC_MS * 1000LL)
			continue;
		ended[count].step = actor->step;
		if (line_is(actor->step, "exit"))
			wait_for_end(actor->pid);
		strcpy(ended[count++].text, line_is(actor->step, "exit") ||
					    line_is(actor->step, "threadexit") ? " = ended" : " DIED");
		if (line_is(actor->step, "threadexit"))
			atomic_store(&actor->turn, GONE);
		else
			forget_process(actor->pid, -1);
	}
	return count;
}

static bool all_asleep(void)
{
	int64_t now = now_us();

	for (int i = 0; i < ACTORS; i++) {
		struct actor *actor = &world->actors[i];

		if (atomic_load(&actor->turn) == DONE)
			return false;
		if (atomic_load(&actor->turn) != GIVEN)
			continue;
		if (now - begun[i] < sleep_max[i] * 1000LL ||
		    state_of(i) != 'S')
			return false;
	}
	return true;
}

static bool any_pending(void)
{
	for (int i = 0; i < ACTORS; i++)
		if (is_pending(&world->actors[i]))
			return true;
	return false;
}

/* On the kernel: waits until every pending call sleeps. */
static int settle(struct ended *ended)
{
	int64_t start = now_us();
	int count = 0, quiet = 0;

	while (any_pending() && quiet < QUIET_CHECKS && now_us() - start < SETTLE_MAX_MS * 1000LL) {
		uint32_t seen = atomic_load(&world->events);

		count = collect(ended, count);
		quiet = all_asleep() ? quiet + 1 : 0;
		if (any_pending())
			wait_event(seen, CHECK_US);
	}
	return collect(ended, count);
}

/* Returns whether a step, or one that runs at the same time, takes long on any machine. */
static bool does_much(int at)
{
	static const char *const names[] = { "crowd", "churn",   "pour", "collect",
					     "recycle", "poke", "listeners" };

	for (int i = at; i >= 0 && i > at - 3; i--)
		for (size_t k = 0; k < sizeof names / sizeof *names; k++)
			if (line_is(i, names[k]))
				return true;
	return false;
}

static bool spun_long(int64_t start)
{
	return !any_pending() || now_us() - start > SPIN_MAX_MS * 1000LL;
}

/* On Weft: waits until all steps have ended that ended at this point on the kernel. A step that did
 * not end there must be asleep before the next step begins, above all if that is a signal. */
static int settle_as_expected(struct ended *ended, int at, bool blocks)
{
	int64_t start = now_us();
	int count = 0, quiet = 0;

	for (;;) {
		uint32_t seen = atomic_load(&world->events);
		int missing = 0;

		count = collect(ended, count);
		for (int i = 0; i < STEPS; i++)
			if (expected_end[i] == at && i <= at) {
				missing++;
				for (int k = 0; k < count; k++)
					missing -= ended[k].step == i;
			}
		quiet = blocks && all_asleep() ? quiet + 1 : 0;
		if (!missing && (!blocks || quiet >= QUIET_CHECKS || spun_long(start)))
			return count;
		if (missing && now_us() - start > late_ms * 1000LL * (does_much(at) ? 10 : 1)) {
			stopped = true;
			return count;
		}
		wait_event(seen, missing ? EARLY_US : EARLY_US / QUIET_CHECKS);
	}
}

static void print_ended(struct ended *ended, int count, int at)
{
	qsort(ended, count, sizeof *ended, by_step);
	for (int i = 0; i < count; i++)
		printf("@%d %d ->%s\n", at, ended[i].step, ended[i].text);
	if (stopped)
		printf("@%d LATE\n", at);
}

static void read_expected(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[TEXT + 64];
	int at, step;

	for (int i = 0; i < STEPS; i++)
		expected_end[i] = -1;
	expecting = file != NULL;
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "@%d %d ->", &at, &step) == 2 && strstr(line, "->") && step >= 0 &&
		    step < STEPS)
			expected_end[step] = at;
	if (file)
		fclose(file);
}

/* Returns the actor for a step. If the step names several (`4|5`), this is the first free one. */
static int choose_actor(const char *word)
{
	int first = -1;

	while (*word) {
		if (isdigit((unsigned char)*word)) {
			int number = (int)strtol(word, (char **)&word, 10) % ACTORS;

			if (first < 0)
				first = number;
			if (atomic_load(&world->actors[number].turn) == IDLE)
				return number;
		} else {
			word++;
		}
	}
	return first < 0 ? 0 : first;
}

/* Returns how many milliseconds a step may sleep before it counts as blocked. */
static int sleep_max_of(const struct step *step)
{
	static const char *const blocking[] = { "recv", "send",	  "wait",   "poll", "scan", "print",
						"move", "accept", "sendto", "warm",  "supply",
					      "sleep" };
	long timeout = number_of(step, "timeout", 0);

	if (is(step, "way", "aio") || is(step, "way", "list"))
		return 30;
	if (!strcmp(step->words[1], "pour") || !strcmp(step->words[1], "collect"))
		return RECORDS_MS;
	for (size_t i = 0; i < sizeof blocking / sizeof *blocking; i++)
		if (!strcmp(step->words[1], blocking[i]))
			return timeout > 0 && timeout < SLOW_MS ? (int)timeout + 30 : 0;
	return is(step, "what", "read") ? READ_MS : !strcmp(step->words[1], "crowd") ? 15000 : SLOW_MS;
}

/* Does steps that the conductor does itself: `- signal N NAME` and `- pause MS`. */
static void do_itself(const struct step *step, int at)
{
	int actor = step->count > 2 ? atoi(step->words[2]) % ACTORS : 0;
	struct actor *to = &world->actors[actor];
	int number = 0;

	if (!strcmp(step->words[1], "pause")) {
		usleep(1000 * (useconds_t)actor);
		return;
	}
	if (step->count > 3)
		number = !strcmp(step->words[3], "USR1")   ? SIGUSR1
			 : !strcmp(step->words[3], "USR2") ? SIGUSR2
			 : !strcmp(step->words[3], "KILL") ? SIGKILL
							   : 0;
	if (atomic_load(&to->turn) == ABSENT || atomic_load(&to->turn) == GONE || !number) {
		printf("@%d %d .. absent\n", at, at);
		return;
	}
	raw(SYS_tgkill, to->pid, to->tid, number, 0, 0, 0);
	if (number == SIGKILL) {
		wait_for_end(to->pid);
		forget_process(to->pid, -1);
	} else {
		usleep(200);
	}
}

static bool begin_step(int at, bool *blocks)
{
	struct step step;
	struct actor *actor;
	int number;
	bool joined;

	read_step(&step, at);
	/* A signal may wake a step that then sleeps again. */
	*blocks = expecting && step.count > 1 && step.words[0][0] == '-';
	if (step.count < 2)
		return true;
	if (step.words[0][0] == '-') {
		do_itself(&step, at);
		return true;
	}
	joined = step.words[0][0] != '+';
	number = choose_actor(step.words[0]);
	actor = &world->actors[number];
	if (atomic_load(&actor->turn) != IDLE) {
		printf("@%d %d .. %s\n", at, at, is_pending(actor) ? "busy" : "absent");
		return joined;
	}
	actor->step = at;
	begun[number] = now_us();
	sleep_max[number] = sleep_max_of(&step);
	*blocks = expecting && expected_end[at] != at;
	atomic_store(&actor->turn, GIVEN);
	raw(SYS_futex, (long)&actor->turn, FUTEX_WAKE, 1, 0, 0, 0);
	return joined;
}

static void begin_root(void)
{
	int null;

	if (fork())
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	null = open("/dev/null", O_RDWR);
	dup2(null, 0);
	dup2(null, 1);
	if (null > 2)
		close(null);
	catch_signals();
	register_actor(0);
	act(0);
}

static void kill_all(void)
{
	for (int i = 0; i < ACTORS; i++)
		if (atomic_load(&world->actors[i].turn) != ABSENT)
			raw(SYS_kill, world->actors[i].pid, SIGKILL, 0, 0, 0, 0);
}

int conduct(const char *program, const char *expected)
{
	struct ended *ended = malloc(sizeof *ended * STEPS);
	char path[300];
	bool blocks = false;

	if (!make_world(program) || !ended) {
		printf("cannot begin\n");
		return 1;
	}
	if (getenv("DIFFER_LATE_MS"))
		late_ms = atoi(getenv("DIFFER_LATE_MS"));
	if (expected)
		read_expected(expected);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	begin_root();
	wait_for_actor(0);
	for (int at = 0; at < world->steps && !stopped; at++) {
		int count;

		if (!begin_step(at, &blocks) && at + 1 < world->steps)
			continue;
		count = expecting ? settle_as_expected(ended, at, blocks) : settle(ended);
		print_ended(ended, count, at);
	}
	if (any_pending() && expecting && !stopped) {
		usleep(2000);
		print_ended(ended, collect(ended, 0), world->steps);
	}
	kill_all();
	snprintf(path, sizeof path, "%s/world", world->folder);
	unlink(path);
	for (int i = 0; i < VARS; i++) {
		if (!world->files[i])
			continue;
		snprintf(path, sizeof path, "%s/file%d", world->folder, i);
		unlink(path);
	}
	rmdir(world->folder);
	printf("end\n");
	return 0;
}
