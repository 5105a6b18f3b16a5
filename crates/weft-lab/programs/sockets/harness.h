/*
 * Stream sockets, case by case: each case is a script for the two ends of a connection. Every call
 * is printed with its result, so that runs with and without Weft can be compared line by line.
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

/* Long enough for a thread that was told to do something to have gone to sleep in it. */
enum { SETTLE_MS = 40 };
/* How long it may take to do so at most; a few jobs never sleep. */
enum { SLEEP_TIMEOUT_MS = 5000 };

/* Where the two ends are. In each the script itself runs at end A. */
enum mode {
	THREADS,   /* B is another thread and accepts */
	PROCESSES, /* B is another process and accepts */
	REVERSED,  /* B is another process and connects */
	MODES
};

/* What a job is told; each uses what it needs. */
struct arguments {
	int fd; /* 0: the end's own socket */
	int other;
	int flags;
	int level, name;
	long size, value;
	const char *text;
};

struct end;
typedef void (*job)(struct end *end, const struct arguments *told);

/* One end. It lies in memory that both processes share. */
struct end {
	char name;
	int fd;
	int extra[EXTRAS]; /* descriptors that a case keeps there */
	long number;       /* and a number */
	in_port_t port;    /* of its listener, in network order */
	pid_t pid, tid;
	bool remote;
	int request[2], answer[2];
	job job;
	struct arguments arguments;
	enum { TOLD, BEGUN, ENDED } progress; /* of the job, at a remote end */
	int notes;
	char note[NOTE_BYTES];
	char data[DATA_BYTES];
};

struct pair {
	struct end *a, *b;
	enum mode mode;
};

/* A connection as `mode` has it, used in both directions: Weft has moved it by then. */
struct pair open_pair(enum mode mode);
/* Another end, without a connection, in a process or thread of its own. */
struct end *open_end(char name, bool process);
/* Requests and answers, `rounds` times; dies if they do not arrive. */
void exchange(struct pair *pair, int rounds);

/* Does `work` at the end and prints what it noted. */
void perform(struct end *end, job work, struct arguments told);
/* Begins it at a remote end, and waits until it sleeps there; `finish` prints. */
void begin(struct end *end, job work, struct arguments told);
void finish(struct end *end);
#define ON(end, work, ...) perform(end, work, (struct arguments){ __VA_ARGS__ })
#define BEGIN(end, work, ...) begin(end, work, (struct arguments){ __VA_ARGS__ })

/* Adds to the line of the job that runs. */
__attribute__((format(printf, 2, 3))) void note(struct end *end, const char *format, ...);
/* Adds " = RESULT", the errno if it is negative, and the signals that came meanwhile. */
void note_result(struct end *end, long result);
/* Adds what was read: text as it is, more by length and hash. */
void note_data(struct end *end, const char *data, long size);
/* Prints a line that belongs to no end. */
__attribute__((format(printf, 1, 2))) void say(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void die(const char *format, ...);
/* For calls of the script that must succeed: the result, or the end of the case. */
long check(long result, const char *what);

void sleep_ms(int milliseconds);
/* Milliseconds since some point. */
long now_ms(void);
/* The byte that stands at `position` of a long stream. */
char pattern(uint64_t position);
/* SIGPIPE and SIGUSR1 that this thread has seen. */
extern _Thread_local volatile int pipe_signals, user_signals;
/* Has SIGUSR1 counted, with SA_RESTART or without. */
void catch_user_signal(bool restart);

void register_case(const char *name, void (*run)(struct pair *pair), bool alone);

/* A case that runs in each mode on a connection of its own. */
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
