/* The C library's streams: standard input or output on a copy of the descriptor, fdopen, and
 * dprintf. */
#include "world.h"

static _Thread_local char buffer[BYTES_MAX];

static size_t length_of(const struct step *step)
{
	long length = number_of(step, "n", 1);

	return length < 0 ? 0 : length > BYTES_MAX - 1 ? BYTES_MAX - 1 : (size_t)length;
}

static int print_without(int fd, const char *format, ...)
{
	va_list arguments;
	int result;

	va_start(arguments, format);
	result = vdprintf(fd, format, arguments);
	va_end(arguments);
	return result;
}

static long print_by(const char *call, FILE *file, size_t length)
{
	if (!strcmp(call, "fwrite"))
		return (long)fwrite(buffer, 1, length, file);
	if (!strcmp(call, "fputs")) {
		buffer[length] = 0;
		return fputs(buffer, file) < 0 ? -1 : (long)length;
	}
	if (!strcmp(call, "putc")) {
		for (size_t i = 0; i < length; i++)
			if (putc(buffer[i], file) == EOF)
				return -1;
		return (long)length;
	}
	return fprintf(file, "%.*s", (int)length, buffer);
}

/* print V n= how=dup2|fdopen call=fprintf|fputs|fwrite|putc, or call=dprintf|vdprintf */
static void do_print(const struct step *step)
{
	struct var *var = var_at(step, 0);
	const char *call = text_of(step, "call", "fprintf");
	size_t length = length_of(step);
	bool standard = !is(step, "how", "fdopen");
	/* Programs, too, take the stream before they replace its descriptor. */
	FILE *file = stdout;
	long result;

	if (!strcmp(call, "dprintf") || !strcmp(call, "vdprintf")) {
		begin_send(var, buffer, length);
		errno = 0;
		result = *call == 'v' ? print_without(var->fd, "%.*s", (int)length, buffer)
				      : dprintf(var->fd, "%.*s", (int)length, buffer);
		note_result(result);
		end_send(var, result);
		return;
	}
	if (!standard)
		file = fdopen(dup(var->fd), "w");
	else if (dup2(var->fd, 1) < 0)
		file = NULL;
	if (!file) {
		note_result(-1);
		return;
	}
	begin_send(var, buffer, length);
	result = print_by(call, file, length);
	note(" printed %ld", result);
	result = standard ? fflush(file) : fclose(file);
	note_result(result);
	end_send(var, result ? 0 : (long)length);
	if (standard)
		clearerr(stdout);
	if (standard && fcntl(1, F_GETFD) < 0)
		note(" standard output is gone");
}

static size_t scan_by(const char *call, FILE *file, size_t length)
{
	char format[16], *line = NULL;
	size_t got = 0, room = 0;
	ssize_t read;

	if (!strcmp(call, "fgets")) {
		return fgets(buffer, (int)length + 1, file) ? strlen(buffer) : 0;
	} else if (!strcmp(call, "getc")) {
		for (int letter; got < length && (letter = getc(file)) != EOF; got++)
			buffer[got] = (char)letter;
		return got;
	} else if (!strcmp(call, "getdelim")) {
		/* Reads up to the next `k`. */
		read = getdelim(&line, &room, 'k', file);
		got = read < 0 ? 0 : (size_t)read;
		memcpy(buffer, line, got < BYTES_MAX ? got : BYTES_MAX);
		free(line);
		return got;
	} else if (!strcmp(call, "fscanf")) {
		snprintf(format, sizeof format, "%%%zuc", length);
		return length && fscanf(file, format, buffer) == 1 ? length : 0;
	}
	return fread(buffer, 1, length, file);
}

/* scan V n= how=dup2|fdopen call=fread|fgets|getc|getdelim|fscanf */
static void scan(const struct step *step)
{
	struct var *var = var_at(step, 0);
	size_t length = length_of(step), got;
	bool standard = !is(step, "how", "fdopen");
	FILE *file = stdin;

	if (!standard)
		file = fdopen(dup(var->fd), "r");
	else if (dup2(var->fd, 0) < 0)
		file = NULL;
	if (!file) {
		note_result(-1);
		return;
	}
	/* Without a buffer, so that it does not take bytes of later steps. */
	setvbuf(file, NULL, _IONBF, 0);
	got = scan_by(text_of(step, "call", "fread"), file, length);
	check_received(var, buffer, (long)got, false);
	note(" = %zu%s%s", got, feof(file) ? " end" : "", ferror(file) ? " error" : "");
	if (!standard) {
		fclose(file);
		return;
	}
	clearerr(stdin);
	if (recv(0, buffer, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EBADF)
		note(" standard input is gone");
}

static void do_scan(const struct step *step)
{
	one_at_a_time(step, scan);
}

/* stream V how=fclose|freopen|freopen64|fopen|tmpfile: a stream closes V's descriptor, or opens
 * another file under the same number or another. */
static void do_stream(const struct step *step)
{
	const char *how = text_of(step, "how", "fclose");
	int fd = var_at(step, 0)->fd;
	FILE *file, *again;

	if (!strcmp(how, "fopen") || !strcmp(how, "tmpfile")) {
		file = *how == 'f' ? fopen("/dev/null", "r+") : tmpfile();
		note(" number %d", file ? fileno(file) : -1);
		note_result(file ? fclose(file) : -1);
		return;
	}
	file = fdopen(fd, "r+");
	if (!file) {
		note_result(-1);
		return;
	}
	if (strcmp(how, "fclose")) {
		again = !strcmp(how, "freopen") ? freopen("/dev/null", "r+", file)
						: freopen64("/dev/null", "r+", file);
		note(" number %d", again ? fileno(again) : -1);
		file = again;
	}
	note_result(file ? fclose(file) : -1);
}

const struct named streams[] = {
	{ "print", do_print }, { "scan", do_scan }, { "stream", do_stream }, { NULL, NULL },
};
