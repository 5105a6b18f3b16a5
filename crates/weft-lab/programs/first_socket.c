/*
 * What a process may do while it gets its first socket, or before.
 *
 *     first_socket blocked    Runs itself with SIGSYS blocked; forks, and returns from a handler
 *     first_socket jumps N    Handlers jump out of the calls that make the first connection, in N
 *                             processes; afterwards each starts threads
 *     first_socket lookup shutdown|bind
 *                             A handler jumps out of a hook that looks up the next function, with
 *                             the library signal_in_lookup; afterwards a thread looks up another
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plain.h"

static void check_blocked(const char *where)
{
	sigset_t set;
	long parent = getppid();

	REQUIRE(!sigprocmask(SIG_BLOCK, NULL, &set));
	printf("%s: SIGSYS is %s, a call by hand is %s\n", where,
	       sigismember(&set, SIGSYS) ? "blocked" : "not blocked",
	       by_hand(SYS_getppid) == parent ? "made" : "lost");
	fflush(stdout);
}

static sigjmp_buf back;

static void first_in_handler(int signal)
{
	(void)signal;
	use_a_connection(NULL);
}

static void jump(int signal)
{
	siglongjmp(back, signal);
}

static void fork_and_check(const char *where)
{
	int status;
	pid_t child = fork();

	REQUIRE(child >= 0);
	if (!child) {
		check_blocked(where);
		_exit(0);
	}
	REQUIRE(waitpid(child, &status, 0) == child);
	printf("%s: status %d\n", where, status);
	fflush(stdout);
}

static void blocked(const char *way)
{
	pthread_t thread;
	int is_back;

	if (!strcmp(way, "thread")) {
		/* A thread gets the first socket. The first thread forks. */
		REQUIRE(!pthread_create(&thread, NULL, use_a_connection, NULL));
		REQUIRE(!pthread_join(thread, NULL));
	} else if (!strcmp(way, "handler")) {
		signal(SIGUSR1, first_in_handler);
		REQUIRE(!raise(SIGUSR1));
	} else {
		is_back = sigsetjmp(back, 1);
		if (!is_back) {
			use_a_connection(NULL);
			siglongjmp(back, 1);
		}
	}
	check_blocked(way);
	fork_and_check("child");
	use_a_connection(NULL);
}

static void *nothing(void *argument)
{
	return argument;
}

/* Handlers jump out of the first calls. Threads that begin later must not wait for ever. */
static void jumps_of_a_process(int microseconds)
{
	struct itimerval time = { .it_value.tv_usec = microseconds };
	pthread_t thread;

	signal(SIGALRM, jump);
	if (!sigsetjmp(back, 1)) {
		REQUIRE(!setitimer(ITIMER_REAL, &time, NULL));
		for (;;)
			use_a_connection(NULL);
	}
	signal(SIGALRM, SIG_DFL);
	alarm(240);
	for (int i = 0; i < 3; i++) {
		REQUIRE(!pthread_create(&thread, NULL, nothing, NULL));
		REQUIRE(!pthread_join(thread, NULL));
	}
}

static int jumps(int processes)
{
	int bad = 0;

	for (int i = 0; i < processes; i++) {
		int status;
		pid_t child = fork();

		REQUIRE(child >= 0);
		if (!child) {
			jumps_of_a_process(1 + i * 7 % 700);
			_exit(0);
		}
		REQUIRE(waitpid(child, &status, 0) == child);
		bad += status != 0;
	}
	printf("%d of %d processes failed\n", bad, processes);
	return bad != 0;
}

static void *look_up(void *argument)
{
	REQUIRE(!dlsym(RTLD_DEFAULT, "a_function_that_is_missing"));
	return argument;
}

static int jump_out_of_lookup(const char *function)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	pthread_t thread;

	signal(SIGUSR2, jump);
	if (!sigsetjmp(back, 1)) {
		if (!strcmp(function, "bind"))
			bind(fd, (struct sockaddr *)&address, sizeof address);
		else
			shutdown(fd, SHUT_RDWR);
		printf("nothing was looked up\n");
		return 1;
	}
	alarm(240);
	REQUIRE(!pthread_create(&thread, NULL, look_up, NULL));
	REQUIRE(!pthread_join(thread, NULL));
	printf("the loader is free\n");
	return 0;
}

int main(int count, char **arguments)
{
	sigset_t set;

	REQUIRE(count == 3);
	if (!strcmp(arguments[1], "jumps"))
		return jumps(atoi(arguments[2]));
	if (!strcmp(arguments[1], "lookup"))
		return jump_out_of_lookup(arguments[2]);
	if (!strcmp(arguments[1], "blocked")) {
		sigemptyset(&set);
		sigaddset(&set, SIGSYS);
		REQUIRE(!sigprocmask(SIG_BLOCK, &set, NULL));
		execl("/proc/self/exe", arguments[0], "again", arguments[2], NULL);
		return 2;
	}
	blocked(arguments[2]);
	return 0;
}
