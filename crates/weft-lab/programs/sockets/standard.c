/* Connections as standard streams, and as descriptors of a FILE: the C library reads and writes
 * them without hooks. Children do this, because the cases themselves print. */
#include <fcntl.h>
#include <pty.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <utmp.h>

#include "calls.h"

static void run_child(void (*work)(struct pair *pair), struct pair *pair)
{
	pid_t child;
	int status;

	fflush(stdout);
	child = check(fork(), "fork");
	if (!child) {
		work(pair);
		fflush(stdout);
		_exit(0);
	}
	check(waitpid(child, &status, 0), "waitpid");
	say("the child: %x", status);
}

static void print(struct pair *pair)
{
	check(dup2(pair->a->fd, STDOUT_FILENO), "dup2");
	printf("hello %d\n", 5);
	fflush(stdout);
	puts("and more");
}

CASE(standard_output)
{
	run_child(print, pair);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

static void answer_lines(struct pair *pair)
{
	char line[100];

	check(dup2(pair->a->fd, STDIN_FILENO), "dup2");
	check(dup2(pair->a->fd, STDOUT_FILENO), "dup2");
	while (fgets(line, sizeof line, stdin)) {
		printf("answer to %s", line);
		fflush(stdout);
	}
}

CASE(standard_input)
{
	ON(pair->b, do_send, .text = "unread\nby");
	ON(pair->b, do_send, .text = " then\nlast\n");
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	run_child(answer_lines, pair);
	ON(pair->b, do_recv, .size = 200);
}

static void redirect_back(struct pair *pair)
{
	int file = check(memfd_create("lines", 0), "memfd_create");
	char line[100] = "";

	check(write(file, "of a file\nsecond\n", 17), "write");
	check(dup2(pair->a->fd, STDIN_FILENO), "dup2");
	if (!fgets(line, sizeof line, stdin) || strcmp(line, "a line\n"))
		die("not the line");
	check(dup2(file, STDIN_FILENO), "dup2");
	rewind(stdin);
	if (!fgets(line, sizeof line, stdin))
		strcpy(line, "nothing");
	check(dup2(pair->a->fd, STDOUT_FILENO), "dup2");
	printf("%s", line);
}

CASE(standard_input_and_back)
{
	ON(pair->b, do_send, .text = "a line\n");
	run_child(redirect_back, pair);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

static void reopen(struct pair *pair)
{
	char line[100];

	check(dup2(pair->a->fd, STDIN_FILENO), "dup2");
	if (!freopen("/proc/self/comm", "r", stdin) || !fgets(line, sizeof line, stdin))
		strcpy(line, "nothing");
	check(write(pair->a->fd, line, strlen(line)), "write");
}

CASE(standard_input_reopened)
{
	run_child(reopen, pair);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

static void use_number_of_file(struct pair *pair)
{
	FILE *file = fopen("/dev/null", "r+");

	setvbuf(file, NULL, _IONBF, 0);
	check(dup2(pair->a->fd, fileno(file)), "dup2");
	fprintf(file, "by a stream's number %d", 3);
	fclose(file);
}

CASE(standard_number_of_file)
{
	run_child(use_number_of_file, pair);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

static void run_shell(struct pair *pair)
{
	for (int fd = 0; fd < 2; fd++)
		check(dup2(pair->a->fd, fd), "dup2");
	execlp("dash", "dash", "-c", "read word rest; echo got $word; cat", NULL);
	_exit(1);
}

/* A shell has the connection as its standard streams, as under inetd. */
CASE(standard_shell)
{
	ON(pair->b, do_send, .text = "one two\nthree\n");
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	run_child(run_shell, pair);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_WAITALL);
}

static void become_daemon(struct pair *pair)
{
	check(dup2(pair->a->fd, STDIN_FILENO), "dup2");
	check(dup2(pair->a->fd, STDOUT_FILENO), "dup2");
	check(daemon(1, 0), "daemon");
	check(write(STDOUT_FILENO, "to nobody", 9), "write");
	check(write(pair->a->fd, "of a daemon", 11), "write");
}

CASE(standard_daemon)
{
	run_child(become_daemon, pair);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

static void be_in_terminal(struct pair *pair)
{
	char text[100] = "";
	int master;
	pid_t child;

	check(dup2(pair->a->fd, STDIN_FILENO), "dup2");
	child = check(forkpty(&master, NULL, NULL, NULL), "forkpty");
	if (!child) {
		printf("%s a terminal", isatty(STDIN_FILENO) ? "in" : "not in");
		fflush(stdout);
		_exit(0);
	}
	check(read(master, text, sizeof text - 1), "read");
	waitpid(child, NULL, 0);
	check(write(STDIN_FILENO, text, strlen(text)), "write");
}

CASE(standard_terminal)
{
	run_child(be_in_terminal, pair);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}
