/*
 * Cases for stream sockets. Each case is a script for the two ends of a connection. It prints every
 * call with its result, so that the test can compare runs with and without Weft line by line.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

enum { DATA_BYTES = 1 << 20, NOTE_BYTES = 4096, EXTRAS = 8 };

/* The time in which a thread that gets a job falls asleep in it, and what is under way arrives. The
 * test doubles it by SOCKETS_SETTLE_MS if a result differs: a busy machine takes longer. */
extern int settle_ms;
/* The time limit for a thread to fall asleep in its job. A few jobs never sleep. */
enum { SLEEP_TIMEOUT_MS = 5000 };

/* Where the two ends run. The script itself always runs at end A. */
enum mode {
	THREADS,   /* B is another thread and accepts */
	PROCESSES, /* B is another process and accepts */
	REVERSED,  /* B is another process and connects */
	MODES
};

/* The arguments of a job. Each job uses some of them. */
struct arguments {
	int fd; /* 0: the end's own socket */
	int other;
	int flags;
	int level, name;
	long size, value;
	const char *text;
};

struct end;
typedef void (*job)(struct end *end, const struct arguments *args);

/* One end, in memory that both processes share. */
struct end {
	char name;
	int fd;
	int extra[EXTRAS]; /* descriptors of the case at this end */
	long number;       /* a number of the case */
	in_port_t port;    /* of its listener, in network order */
	pid_t pid, tid;
	bool remote;
	int request[2], answer[2];
	job job;
	struct arguments arguments;
	enum { REQUESTED, BEGUN, ENDED } progress; /* progress of a job at a remote end */
	int notes;
	char note[NOTE_BYTES];
	char data[DATA_BYTES];
};

struct pair {
	struct end *a, *b;
	enum mode mode;
};

/* Opens a connection in the given mode and uses it in both directions, so that Weft moves it. */
struct pair open_pair(enum mode mode);
/* Starts another end without a connection, in a new process or thread. */
struct end *open_end(char name, bool process);
/* Exchanges requests and answers, `rounds` times. Ends the case if they do not arrive. */
void exchange(struct pair *pair, int rounds);

/* Does `work` at an end and prints its notes. */
void perform(struct end *end, job work, struct arguments args);
/* Starts `work` at a remote end, and waits until it sleeps there. `finish` prints its notes. */
void begin(struct end *end, job work, struct arguments args);
void finish(struct end *end);
/* Sends SIGUSR1 to the thread of an end. */
void send_signal(const struct end *end);
/* Ends the job of `begin` by SIGUSR1, and prints its notes. The signal is repeated: in the last
 * moment before a call sleeps, Weft may miss one. */
void interrupt(struct end *end);
#define ON(end, work, ...) perform(end, work, (struct arguments){ __VA_ARGS__ })
#define BEGIN(end, work, ...) begin(end, work, (struct arguments){ __VA_ARGS__ })

/* Adds text to the line of the running job. */
__attribute__((format(printf, 2, 3))) void note(struct end *end, const char *format, ...);
/* Adds " = RESULT", errno if the result is negative, and the signals that came meanwhile. */
void note_result(struct end *end, long result);
/* Adds received bytes: a short text itself, longer data as a hash. */
void note_data(struct end *end, const char *data, long size);
/* Prints a line that does not belong to an end. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
/* Returns the result of a call that must succeed, or ends the case. */
long check(long result, const char *what);

void sleep_ms(int milliseconds);
/* Returns the milliseconds of a monotonic clock. */
long now_ms(void);
/* Returns the byte at `position` of a long stream. */
char pattern(uint64_t position);
/* How many SIGPIPE and SIGUSR1 this thread has got. */
extern _Thread_local volatile int pipe_signals, user_signals;
/* Installs a handler that counts SIGUSR1, with or without SA_RESTART. */
void catch_user_signal(bool restart);

void register_case(const char *name, void (*run)(struct pair *pair), bool alone);

/* A case that runs in each mode on a new connection. */
#define CASE(name) CASE_(name, false)
/* A case that runs once and makes its own connections; `pair` is null. */
#define LONE_CASE(name) CASE_(name, true)
#define CASE_(name, alone)                                                         \
	static void case_##name(struct pair *pair);                                \
	__attribute__((constructor)) static void register_##name(void)             \
	{                                                                          \
		register_case(#name, case_##name, alone);                          \
	}                                                                          \
	static void case_##name(struct pair *pair __attribute__((unused)))

#endif
