/* Makes the shared world, reads steps, notes results, and makes direct system calls. */
#include "world.h"

#include <sys/mman.h>
#include <sys/stat.h>

struct world *world;
_Thread_local int own;

long raw(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

long by_hand(long number, ...)
{
	long arguments[6], result;
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	result = raw(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
		     arguments[5]);
	if (result < 0 && result > -4096) {
		errno = (int)-result;
		return -1;
	}
	return result;
}

static struct world *map(int fd)
{
	long at = raw(SYS_mmap, 0, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return at < 0 && at > -4096 ? NULL : (struct world *)at;
}

void open_world(const char *path)
{
	long fd = raw(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_CLOEXEC, 0, 0, 0);

	if (fd < 0)
		_exit(101);
	world = map((int)fd);
	raw(SYS_close, fd, 0, 0, 0, 0, 0);
	if (!world)
		_exit(102);
}

static void find_lines(void)
{
	char *at = world->program;

	while (*at && world->steps < STEPS) {
		char *end = strchrnul(at, '\n');

		if (*at != '#' && *at != '\n')
			world->lines[world->steps++] = (int)(at - world->program);
		at = *end ? end + 1 : end;
	}
}

bool make_world(const char *program)
{
	const char *parent = getenv("DIFFER_DIR");
	char path[240], folder[180];
	FILE *file = fopen(program, "r");
	int fd;

	snprintf(folder, sizeof folder, "%s/differ-XXXXXX", parent ? parent : "/dev/shm");
	if (!file || !mkdtemp(folder))
		return false;
	chmod(folder, 0777);
	snprintf(path, sizeof path, "%s/world", folder);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || fchmod(fd, 0666) || ftruncate(fd, sizeof(struct world)))
		return false;
	world = map(fd);
	close(fd);
	if (!world)
		return false;
	for (int i = 0; i < VARS; i++)
		be_file(&world->vars[i], -1, NOTHING);
	strcpy(world->folder, folder);
	if (fread(world->program, 1, PROGRAM - 1, file) == 0)
		return false;
	fclose(file);
	find_lines();
	return readlink("/proc/self/exe", world->self, sizeof world->self - 1) > 0;
}

void read_step(struct step *step, int index)
{
	const char *line = world->program + world->lines[index];
	size_t length = strchrnul(line, '\n') - line;
	char *rest;

	if (length >= sizeof step->line)
		length = sizeof step->line - 1;
	memcpy(step->line, line, length);
	step->line[length] = 0;
	step->count = 0;
	for (char *word = strtok_r(step->line, " ", &rest); word && step->count < WORDS;
	     word = strtok_r(NULL, " ", &rest))
		step->words[step->count++] = word;
}

int index_at(const struct step *step, int position)
{
	int seen = 0;

	for (int i = 2; i < step->count; i++) {
		const char *word = step->words[i];

		if (word[0] == 'v' && word[1] >= '0' && word[1] <= '9' && seen++ == position) {
			int index = atoi(word + 1);

			return index >= 0 && index < VARS ? index : 0;
		}
	}
	return 0;
}

struct var *var_at(const struct step *step, int position)
{
	return &world->vars[index_at(step, position)];
}

const char *text_of(const struct step *step, const char *name, const char *otherwise)
{
	size_t length = strlen(name);

	for (int i = 2; i < step->count; i++)
		if (!strncmp(step->words[i], name, length) && step->words[i][length] == '=')
			return step->words[i] + length + 1;
	return otherwise;
}

long number_of(const struct step *step, const char *name, long otherwise)
{
	const char *text = text_of(step, name, NULL);

	return text ? strtol(text, NULL, 0) : otherwise;
}

bool is(const struct step *step, const char *name, const char *value)
{
	return !strcmp(text_of(step, name, ""), value);
}

enum way way_of(const struct step *step)
{
	static const char *const names[] = { "plain", "syscall", "asm",	 "uring",
					     "aio",   "old",	 "list", "submit" };
	const char *way = text_of(step, "way", "plain");

	for (int i = 0; i < 8; i++)
		if (!strcmp(way, names[i]))
			return i;
	return PLAIN;
}

void note(const char *format, ...)
{
	struct actor *actor = &world->actors[own];
	int room = TEXT - actor->notes, added;
	va_list arguments;

	va_start(arguments, format);
	added = vsnprintf(actor->text + actor->notes, room, format, arguments);
	va_end(arguments);
	actor->notes += added < room ? added : room - 1;
}

void note_result(long result)
{
	int error = errno;

	if (result < 0)
		note(" = %s", strerrorname_np(error));
	else
		note(" = %ld", result);
}
