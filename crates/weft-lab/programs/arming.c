/*
 * Threads that make system calls by their own instructions while the process gets its first socket,
 * when Weft begins to see such calls. Some threads exist before, others begin meanwhile. Each call
 * has to be made, once. Usage: arming ROUNDS; each round is a process of its own.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plain.h"

#define EARLY 1
#define STARTERS 3
#define CALLS 50
#define BATCHES 4

static atomic_int is_over;
static atomic_long lost;
static long parent;

static void call_often(void)
{
	for (int i = 0; i < CALLS; i++)
		if (by_hand(SYS_getppid) != parent)
			lost++;
}

static void *early(void *argument)
{
	while (!is_over)
		call_often();
	return argument;
}

static void *late(void *argument)
{
	call_often();
	return argument;
}

static void *start_others(void *argument)
{
	while (!is_over) {
		pthread_t thread;

		REQUIRE(!pthread_create(&thread, NULL, late, NULL));
		REQUIRE(!pthread_join(thread, NULL));
	}
	return argument;
}

static int round_(void)
{
	pthread_t threads[EARLY + STARTERS];

	parent = getppid();
	for (int i = 0; i < EARLY; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, early, NULL));
	for (int i = EARLY; i < EARLY + STARTERS; i++)
		REQUIRE(!pthread_create(&threads[i], NULL, start_others, NULL));
	for (int i = 0; i < BATCHES; i++) {
		call_often();
		if (i == BATCHES / 2)
			use_a_connection(NULL);
	}
	is_over = 1;
	for (int i = 0; i < EARLY + STARTERS; i++)
		REQUIRE(!pthread_join(threads[i], NULL));
	return lost != 0;
}

int main(int count, char **arguments)
{
	int rounds = count > 1 ? atoi(arguments[1]) : 1, bad = 0;

	for (int i = 0; i < rounds; i++) {
		int status;
		pid_t pid = fork();

		REQUIRE(pid >= 0);
		if (!pid)
			_exit(round_());
		REQUIRE(waitpid(pid, &status, 0) == pid);
		bad += status != 0;
	}
	printf("%d of %d processes lost calls\n", bad, rounds);
	return bad != 0;
}
