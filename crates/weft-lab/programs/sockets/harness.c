/*
 *   sockets [PREFIX [OTHER...]]        runs the cases whose names begin with PREFIX and with no OTHER;
 *                                      a space in OTHER stands for the end of a name
 *   sockets --echo                     echoes on standard input: a case executes this
 *
 * Each case runs in its own process, and several run at a time. Output is in the order of names.
 * The last line has the number of connections that Weft should have moved.
 */
#include "harness.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* A case that takes CASE_SECONDS hangs. */
enum { CASES_MAX = 400, AT_ONCE = 16, CASE_SECONDS = 240, WARM_ROUNDS = 4 };
enum { SIGNAL_INTERVAL_MS = 500 };

static const char *const MODE_NAMES[MODES] = { "threads", "processes", "reversed" };

struct test_case {
	const char *name;
	void (*run)(struct pair *pair);
	bool alone;
};

int settle_ms = 40;

static struct test_case cases[CASES_MAX];
static int case_count;

/* The number of connections that open_pair() has made in all processes. */
static int *warmed;

_Thread_local volatile int pipe_signals, user_signals;
static _Thread_local int pipe_signals_seen, user_signals_seen;

void register_case(const char *name, void (*run)(struct pair *pair), bool alone)
{
	if (case_count == CASES_MAX)
		die("too many cases");
	cases[case_count++] = (struct test_case){ name, run, alone };
}

void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

long check(long result, const char *what)
{
	if (result < 0)
		die("%s: %s", what, strerrorname_np(errno));
	return result;
}

void say(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
	fflush(stdout);
}

void note(struct end *end, const char *format, ...)
{
	va_list arguments;
	int room = NOTE_BYTES - end->notes, added;

	va_start(arguments, format);
	added = vsnprintf(end->note + end->notes, room, format, arguments);
	va_end(arguments);
	end->notes += added < room ? added : room - 1;
}

void note_result(struct end *end, long result)
{
	int error = errno;

	note(end, " = %ld", result);
	if (result < 0)
		note(end, " %s", strerrorname_np(error));
	if (pipe_signals != pipe_signals_seen)
		note(end, " SIGPIPE");
	if (user_signals != user_signals_seen)
		note(end, " SIGUSR1");
	pipe_signals_seen = pipe_signals;
	user_signals_seen = user_signals;
}

void note_data(struct end *end, const char *data, long size)
{
	uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */

	if (size < 0)
		return;
	if (size <= 64) {
		note(end, " \"");
		for (long i = 0; i < size; i++)
			note(end, isprint((unsigned char)data[i]) ? "%c" : "\\x%02x",
			     (unsigned char)data[i]);
		note(end, "\"");
		return;
	}
	for (long i = 0; i < size; i++)
		hash = (hash ^ (unsigned char)data[i]) * 0x100000001b3;
	note(end, " #%016lx", hash);
}

void sleep_ms(int milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000L };

	while (nanosleep(&time, &time))
		;
}

long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

char pattern(uint64_t position)
{
	return (char)((position * 0x9e3779b97f4a7c15) >> 56);
}

static void on_pipe_signal(int number __attribute__((unused)))
{
	pipe_signals++;
}

static void on_user_signal(int number __attribute__((unused)))
{
	user_signals++;
}

void catch_user_signal(bool restart)
{
	struct sigaction action = { .sa_handler = on_user_signal,
				    .sa_flags = restart ? SA_RESTART : 0 };

	check(sigaction(SIGUSR1, &action, NULL), "sigaction");
}

static void run_job(struct end *end)
{
	pipe_signals_seen = pipe_signals;
	user_signals_seen = user_signals;
	end->notes = 0;
	end->note[0] = 0;
	end->job(end, &end->arguments);
}

static void *serve_jobs(void *argument)
{
	struct end *end = argument;
	char byte;
	long got;

	end->pid = getpid();
	end->tid = gettid();
	check(write(end->answer[1], "", 1), "write");
	while ((got = read(end->request[0], &byte, 1)) == 1 || (got < 0 && errno == EINTR)) {
		if (got < 0)
			continue;
		__atomic_store_n(&end->progress, BEGUN, __ATOMIC_RELEASE);
		run_job(end);
		__atomic_store_n(&end->progress, ENDED, __ATOMIC_RELEASE);
		check(write(end->answer[1], "", 1), "write");
	}
	return NULL;
}

/* Waits for the answer to the last request. A thread that ends does not close its pipe, so only the
 * alarm of the case ends the wait then. */
static void wait_for_answer(struct end *end)
{
	char byte;
	long got;

	do
		got = read(end->answer[0], &byte, 1);
	while (got < 0 && errno == EINTR);
	if (got != 1)
		die("%c has gone", end->name);
}

static struct end *new_end(char name)
{
	struct end *end = mmap(NULL, sizeof *end, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (end == MAP_FAILED)
		die("mmap");
	end->name = name;
	end->fd = -1;
	memset(end->extra, -1, sizeof end->extra);
	end->pid = getpid();
	end->tid = gettid();
	return end;
}

struct end *open_end(char name, bool process)
{
	struct end *end = new_end(name);
	pthread_t thread;
	pid_t child, parent = getpid();

	end->remote = true;
	check(pipe(end->request), "pipe");
	check(pipe(end->answer), "pipe");
	if (process) {
		fflush(stdout);
		child = check(fork(), "fork");
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent)
				_exit(1);
			close(end->request[1]);
			close(end->answer[0]);
			serve_jobs(end);
			exit(0);
		}
		close(end->request[0]);
		close(end->answer[1]);
	} else if (pthread_create(&thread, NULL, serve_jobs, end)) {
		die("pthread_create");
	}
	wait_for_answer(end);
	return end;
}

static void request(struct end *end, job work, struct arguments args)
{
	end->job = work;
	end->arguments = args;
	end->progress = REQUESTED;
	if (!end->arguments.fd)
		end->arguments.fd = end->fd;
	if (end->remote)
		check(write(end->request[1], "", 1), "write to an end");
	else
		run_job(end);
}

static void print_notes(struct end *end)
{
	if (end->notes)
		say("  %c %s", end->name, end->note);
}

void perform(struct end *end, job work, struct arguments args)
{
	request(end, work, args);
	if (end->remote)
		wait_for_answer(end);
	print_notes(end);
}

/* Returns whether the thread of an end sleeps in a call or has ended. */
static bool sleeps(const struct end *end)
{
	char path[64], line[256];
	ssize_t length;
	char *state;
	int fd;

	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", end->pid, end->tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	length = read(fd, line, sizeof line - 1);
	close(fd);
	line[length < 0 ? 0 : length] = 0;
	/* The state follows the program's name, which may contain any character. */
	state = strrchr(line, ')');
	return !state || state[2] == 'S';
}

void begin(struct end *end, job work, struct arguments args)
{
	if (!end->remote)
		die("%c is here", end->name);
	request(end, work, args);
	/* On a busy machine the thread makes its call later. */
	while (__atomic_load_n(&end->progress, __ATOMIC_ACQUIRE) == REQUESTED)
		sleep_ms(1);
	sleep_ms(settle_ms);
	for (int i = 0; i < SLEEP_TIMEOUT_MS && end->progress != ENDED && !sleeps(end); i++)
		sleep_ms(1);
}

void finish(struct end *end)
{
	wait_for_answer(end);
	print_notes(end);
}

void send_signal(const struct end *end)
{
	check(syscall(SYS_tgkill, end->pid, end->tid, SIGUSR1), "tgkill");
}

static bool has_ended(const struct end *end)
{
	return __atomic_load_n(&end->progress, __ATOMIC_ACQUIRE) == ENDED;
}

void interrupt(struct end *end)
{
	while (!has_ended(end)) {
		send_signal(end);
		for (int i = 0; i < SIGNAL_INTERVAL_MS && !has_ended(end); i++)
			sleep_ms(1);
	}
	finish(end);
}

static struct sockaddr_in loopback(in_port_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = port,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* Without TCP_NODELAY small pieces sometimes wait for acknowledgements. */
static void send_at_once(int fd)
{
	int one = 1;

	check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), "TCP_NODELAY");
}

static void listen_here(struct end *end, const struct arguments *args __attribute__((unused)))
{
	struct sockaddr_in address = loopback(0);
	socklen_t length = sizeof address;

	end->extra[0] = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(bind(end->extra[0], (struct sockaddr *)&address, sizeof address), "bind");
	check(listen(end->extra[0], 16), "listen");
	check(getsockname(end->extra[0], (struct sockaddr *)&address, &length), "getsockname");
	end->port = address.sin_port;
}

static void accept_here(struct end *end, const struct arguments *args __attribute__((unused)))
{
	end->fd = check(accept(end->extra[0], NULL, NULL), "accept");
	send_at_once(end->fd);
	check(close(end->extra[0]), "close");
	end->extra[0] = -1;
}

static void connect_here(struct end *end, const struct arguments *args)
{
	struct sockaddr_in address = loopback(args->value);

	end->fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	check(connect(end->fd, (struct sockaddr *)&address, sizeof address), "connect");
	send_at_once(end->fd);
}

static void send_round(struct end *end, const struct arguments *args __attribute__((unused)))
{
	if (check(send(end->fd, "warm", 4, MSG_NOSIGNAL), "send") != 4)
		die("a short send");
}

static void receive_round(struct end *end, const struct arguments *args __attribute__((unused)))
{
	char bytes[4];

	if (check(recv(end->fd, bytes, 4, MSG_WAITALL), "recv") != 4 || memcmp(bytes, "warm", 4))
		die("%c has not received what was sent", end->name);
}

void exchange(struct pair *pair, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		ON(pair->a, send_round);
		ON(pair->b, receive_round);
		ON(pair->b, send_round);
		ON(pair->a, receive_round);
	}
}

/* Returns the microseconds between rounds, in which Weft connects both ends in the background. */
static useconds_t warm_pause(void)
{
	const char *pause = getenv("SOCKETS_WARM_PAUSE");

	return pause ? (useconds_t)atol(pause) : 0;
}

struct pair open_pair(enum mode mode)
{
	struct pair pair = { new_end('A'), open_end('B', mode != THREADS), mode };
	struct end *acceptor = mode == REVERSED ? pair.a : pair.b;
	struct end *connector = mode == REVERSED ? pair.b : pair.a;

	ON(acceptor, listen_here);
	ON(connector, connect_here, .value = acceptor->port);
	ON(acceptor, accept_here);
	for (int i = 0; i < WARM_ROUNDS; i++) {
		exchange(&pair, 1);
		usleep(warm_pause());
	}
	__atomic_add_fetch(warmed, 1, __ATOMIC_RELAXED);
	return pair;
}

static void run_case(const struct test_case *test, enum mode mode)
{
	struct pair pair;

	alarm(CASE_SECONDS);
	if (test->alone) {
		test->run(NULL);
	} else {
		pair = open_pair(mode);
		test->run(&pair);
	}
	fflush(stdout);
	_exit(0);
}

struct running {
	pid_t pid;
	int output;
};

static struct running start_case(const struct test_case *test, enum mode mode)
{
	struct running started = { .output = memfd_create("output", MFD_CLOEXEC) };

	check(started.output, "memfd_create");
	fflush(stdout);
	started.pid = check(fork(), "fork");
	if (!started.pid) {
		/* Children of the case have its process group, and are killed with the group. */
		setpgid(0, 0);
		dup2(started.output, STDOUT_FILENO);
		run_case(test, mode);
	}
	return started;
}

static void end_case(const char *name, const char *mode, struct running *running)
{
	char text[4096];
	long got, offset = 0;
	int status;

	if (waitpid(running->pid, &status, 0) != running->pid)
		die("waitpid");
	kill(-running->pid, SIGKILL);
	printf("== %s %s\n", name, mode);
	while ((got = pread(running->output, text, sizeof text, offset)) > 0) {
		fwrite(text, 1, got, stdout);
		offset += got;
	}
	if (WIFSIGNALED(status))
		printf("ended by SIG%s\n", sigabbrev_np(WTERMSIG(status)));
	else if (WEXITSTATUS(status))
		printf("exit status %d\n", WEXITSTATUS(status));
	fflush(stdout);
	close(running->output);
}

static int by_name(const void *left, const void *right)
{
	return strcmp(((const struct test_case *)left)->name, ((const struct test_case *)right)->name);
}

static int echo(void)
{
	char bytes[5000];
	ssize_t got;

	while ((got = read(STDIN_FILENO, bytes, sizeof bytes)) > 0)
		for (ssize_t sent = 0; sent < got;)
			sent += check(write(STDIN_FILENO, bytes + sent, got - sent), "write");
	return got != 0;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = on_pipe_signal, .sa_flags = SA_RESTART };
	struct running running[CASES_MAX * MODES];
	const char *names[CASES_MAX * MODES], *modes[CASES_MAX * MODES];
	int started = 0, ended = 0;
	const char *prefix = argc > 1 ? argv[1] : "", *settle = getenv("SOCKETS_SETTLE_MS");

	if (!strcmp(prefix, "--echo"))
		return echo();
	if (settle)
		settle_ms = atoi(settle);
	warmed = mmap(NULL, sizeof *warmed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (warmed == MAP_FAILED)
		die("mmap");
	sigaction(SIGPIPE, &action, NULL);
	catch_user_signal(false);
	qsort(cases, case_count, sizeof *cases, by_name);
	for (int i = 0; i < case_count; i++) {
		bool wanted = !strncmp(cases[i].name, prefix, strlen(prefix));
		char whole[100];

		snprintf(whole, sizeof whole, "%s ", cases[i].name);
		for (int other = 2; other < argc; other++)
			wanted = wanted && strncmp(whole, argv[other], strlen(argv[other]));
		if (!wanted)
			continue;
		for (int mode = 0; mode < (cases[i].alone ? 1 : MODES); mode++) {
			if (started - ended == AT_ONCE) {
				end_case(names[ended], modes[ended], &running[ended]);
				ended++;
			}
			names[started] = cases[i].name;
			modes[started] = cases[i].alone ? "alone" : MODE_NAMES[mode];
			running[started++] = start_case(&cases[i], mode);
		}
	}
	for (; ended < started; ended++)
		end_case(names[ended], modes[ended], &running[ended]);
	printf("connections: %d\n", *warmed);
	return 0;
}
