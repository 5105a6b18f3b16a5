/* Sockets under FILE and dprintf: the C library makes the calls internally. */
#include <fcntl.h>
#include <sys/wait.h>

#include "calls.h"

static void do_dprintf(struct end *end, const struct arguments *args)
{
	note(end, "dprintf");
	note_result(end, dprintf(args->fd, "%s number %d\n", args->text, 7));
}

static void do_fdopen(struct end *end, const struct arguments *args)
{
	FILE *file = fdopen(dup(args->fd), "r+");
	char line[100];

	if (!file)
		die("fdopen");
	note(end, "fprintf");
	note_result(end, fprintf(file, "%s %d\n", args->text, 42));
	fflush(file);
	note(end, " fileno %s", fileno(file) == args->fd ? "the socket's own" : "a copy's");
	check(fcntl(fileno(file), F_GETFD), "fcntl");
	note(end, " fgets ");
	fgets(line, sizeof line, file) ? note_data(end, line, strlen(line)) : note(end, "nothing");
	note(end, " fclose");
	note_result(end, fclose(file));
}

CASE(stdio_dprintf)
{
	ON(pair->a, do_dprintf, .text = "the first");
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_dprintf, .text = "the second");
	ON(pair->a, do_recv, .size = 100);
	exchange(pair, 2);
}

CASE(stdio_file)
{
	ON(pair->a, do_send, .text = "begun ");
	BEGIN(pair->b, do_fdopen, .text = "a question");
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "and answered\n");
	finish(pair->b);
	ON(pair->b, do_send, .text = "again without");
	ON(pair->a, do_recv, .size = 100);
	exchange(pair, 2);
}

/* A line protocol over two FILEs. */
static void do_serve_lines(struct end *end, const struct arguments *args)
{
	FILE *in = fdopen(args->fd, "r"), *out = fdopen(dup(args->fd), "w");
	char *line = NULL;
	size_t room = 0;
	int lines = 0;

	while (getline(&line, &room, in) > 0) {
		fprintf(out, "%d %s", ++lines, line);
		fflush(out);
	}
	note(end, "%d lines", lines);
	free(line);
	fclose(out);
	fclose(in);
}

CASE(stdio_server)
{
	BEGIN(pair->b, do_serve_lines);
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .text = "line\n");
		ON(pair->a, do_recv, .size = 100);
	}
	ON(pair->a, do_send, .text = "no more");
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_recv, .size = 9, .flags = MSG_WAITALL);
	ON(pair->a, do_recv, .size = 100);
	finish(pair->b);
}

/* Writes many bytes by putc. */
static void do_send_by_file(struct end *end, const struct arguments *args)
{
	FILE *file = fdopen(dup(args->fd), "w");

	for (long i = 0; i < args->size; i++)
		putc(pattern(i), file);
	note(end, "putc %ld times, fclose", args->size);
	note_result(end, fclose(file));
}

CASE(stdio_much)
{
	BEGIN(pair->b, do_drain, .size = 500000);
	ON(pair->a, do_send_by_file, .size = 500000);
	finish(pair->b);
	exchange(pair, 2);
}

/* A child leaves its output in the buffer, and exit() writes it. */
CASE(stdio_unflushed)
{
	pid_t child;

	fflush(stdout);
	child = check(fork(), "fork");
	if (!child) {
		fprintf(fdopen(pair->a->fd, "w"), "not flushed");
		exit(0);
	}
	check(waitpid(child, NULL, 0), "waitpid");
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}
