/* The state that the processes and threads of one program share. The conductor gives turns, so only
 * one thread at a time writes it. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
	ACTORS = 16,
	VARS = 64,
	CONNS = 128,
	STEPS = 512,
	WORDS = 20,
	TEXT = 1024,
	PROGRAM = 64 * 1024,
	DATAGRAMS = 64,
	BYTES_MAX = 1 << 20,
	FILLS = 8,
};

/* One direction of a connection, counted in bytes. During a send `offered` is more than `sent`. */
struct direction {
	uint64_t sent, offered, received;
	/* Positions at which the connection was full. How many bytes fit is not determined, so the
	 * bytes behind such a position do not depend on it. */
	uint64_t filled[FILLS];
	uint32_t fills;
	/* A receive is in progress. Which bytes each of two concurrent receives would get is not
	 * determined. */
	bool receiving;
};

struct conn {
	struct direction way[2];
	in_port_t port;
	/* Lengths of datagrams in flight. */
	bool packets;
	uint32_t lengths[DATAGRAMS];
	uint32_t first, last;
	/* Variables whose descriptors are in flight. */
	uint8_t passed[2][16];
	uint32_t passed_first[2], passed_last[2];
};

enum kind { NOTHING, TCP, LISTENER, UDP, STRANGER, PIPE, EPOLL, PLAIN_FILE, OTHER };

/* A descriptor's number and kind. `out` and `in` are the connections to which it sends and from
 * which it receives, or -1. */
struct var {
	int fd;
	enum kind kind;
	int16_t out, in;
	uint8_t out_way, in_way;
	bool packets;
	struct sockaddr_storage address;
	socklen_t address_length;
};

enum turn { ABSENT, IDLE, GIVEN, DONE, GONE };

struct actor {
	_Atomic uint32_t turn;
	/* IDs in the conductor's PID namespace. */
	int pid, tid;
	int step;
	int notes;
	char text[TEXT];
	_Atomic uint32_t signals[65];
};

struct world {
	_Atomic uint32_t events;
	struct actor actors[ACTORS];
	struct var vars[VARS];
	struct conn conns[CONNS];
	int conns_used;
	bool files[VARS];
	char folder[200];
	char self[200];
	char program[PROGRAM];
	int lines[STEPS];
	int steps;
};

/* A line of the program: `ACTOR OP WORD...`, where a word is a variable (`v3`) or `NAME=VALUE`. */
struct step {
	int count;
	char *words[WORDS];
	char line[400];
};

extern struct world *world;
/* The calling thread's actor. */
extern _Thread_local int own;

/* Direct system calls: the executor's own calls must not depend on the library that it tests. */
long raw(long number, long a, long b, long c, long d, long e, long f);
/* Direct system calls that set errno, for the tested program's calls. */
long by_hand(long number, ...);

/* Older names of the C library's functions, which headers no longer declare. */
ssize_t __read(int fd, void *bytes, size_t length);
ssize_t __write(int fd, const void *bytes, size_t length);
ssize_t __send(int fd, const void *bytes, size_t length, int flags);
int __connect(int fd, const struct sockaddr *address, socklen_t length);
int __close(int fd);
int __dup2(int fd, int copy);
int __fcntl(int fd, int command, ...);
int __poll(struct pollfd *polled, nfds_t count, int timeout);

/* OLD calls the C library's function by its older name, if it has one. */
enum way { PLAIN, SYSCALL, BY_HAND, URING, AIO, OLD, LIST, SUBMIT };
enum way way_of(const struct step *step);

#define BY(way, plain, number, ...)                                                                \
	((way) == SYSCALL   ? syscall(number, __VA_ARGS__)                                         \
	 : (way) == BY_HAND ? by_hand(number, __VA_ARGS__)                                         \
			    : (plain))

void open_world(const char *path);
bool make_world(const char *program);
void read_step(struct step *step, int index);

struct var *var_at(const struct step *step, int position);
int index_at(const struct step *step, int position);
long number_of(const struct step *step, const char *name, long otherwise);
const char *text_of(const struct step *step, const char *name, const char *otherwise);
bool is(const struct step *step, const char *name, const char *value);

void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note_result(long result);

/* bytes.c */
int new_conn(bool packets);
void be_file(struct var *var, int fd, enum kind kind);
void be_stream(struct var *var, int fd, enum kind kind, int conn, int end);
char pattern(int conn, int way, uint64_t position);
char byte_of(int conn, int way, uint64_t position);
void note_filled(struct var *var);
void begin_send(struct var *var, char *bytes, size_t length);
void end_send(struct var *var, long sent);
bool begin_receive(struct var *var);
void end_receive(struct var *var);
bool check_received(struct var *var, const char *bytes, long got, bool peeked);

/* actor.c */
void act(int number) __attribute__((noreturn));
void register_actor(int number);
void catch_signals(void);
void on_signal(int number);

/* processes.c */
int child_mode(char **arguments);
void wait_for_actor(int number);

/* limits.c: whether this process has installed a seccomp filter. */
extern bool gave_up_calls;

/* uring.c: false if the kernel or Weft refuses io_uring. */
bool uring_do(int opcode, int fd, const void *address, unsigned length, uint64_t offset,
	      unsigned flags, long *result);
long aio_transfer(bool write, int fd, void *bytes, size_t length);
long listed_transfer(bool write, int fd, void *bytes, size_t length);
long submitted_transfer(int operation, int fd, void *place, size_t length);
long submitted_poll(struct pollfd *polled, int timeout);

/* conductor.c */
int conduct(const char *program, const char *expected);

typedef void operation(const struct step *step);

struct named {
	const char *name;
	operation *run;
};

extern const struct named transfers[], descriptors[], waits[], processes[], openings[], bulk[],
	any_calls[], of_options[], of_messages[],
	of_signals[], of_others[], of_limits[], streams[];

/* Runs a step that receives, unless another step is receiving from the same direction. */
void one_at_a_time(const struct step *step, operation *run);
