/* Threads, and all ways to make a process. */
#include "world.h"

#include <linux/sched.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <utmp.h>
#include <wordexp.h>

extern char **environ;
static char *no_environment[] = { NULL };

void wait_for_actor(int number)
{
	struct timespec pause = { 0, 20000 };

	for (int i = 0; i < 100000; i++) {
		uint32_t turn = atomic_load(&world->actors[number].turn);

		if (turn == IDLE || turn == GIVEN || turn == DONE)
			return;
		raw(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
	}
}

static int actor_of(const struct step *step)
{
	int number = step->count > 2 ? atoi(step->words[2]) : 0;

	return number > 0 && number < ACTORS ? number : ACTORS - 1;
}

static void *run_thread(void *number)
{
	catch_signals();
	register_actor((int)(intptr_t)number);
	act((int)(intptr_t)number);
}

static bool is_free(int number)
{
	uint32_t turn = atomic_load(&world->actors[number].turn);

	if (turn == ABSENT || turn == GONE) {
		atomic_store(&world->actors[number].turn, ABSENT);
		return true;
	}
	note(" = there is one");
	return false;
}

static int run_thread_of_c11(void *number)
{
	run_thread(number);
	return 0;
}

/* thread N how=pthread|c11 */
static void do_thread(const struct step *step)
{
	int number = actor_of(step), error;
	pthread_t thread;
	thrd_t other;

	if (!is_free(number))
		return;
	if (is(step, "how", "c11"))
		error = thrd_create(&other, run_thread_of_c11, (void *)(intptr_t)number);
	else
		error = pthread_create(&thread, NULL, run_thread, (void *)(intptr_t)number);
	if (!error)
		wait_for_actor(number);
	note(" = %d", error);
}

static long fork_by(const char *how)
{
	struct clone_args arguments = { .exit_signal = SIGCHLD };

	if (!strcmp(how, "syscall"))
		return syscall(SYS_fork);
	if (!strcmp(how, "asm"))
		return by_hand(SYS_fork);
	if (!strcmp(how, "clone"))
		return syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
	if (!strcmp(how, "clone3"))
		return syscall(SYS_clone3, &arguments, sizeof arguments);
	if (!strcmp(how, "_Fork"))
		return _Fork();
	return fork();
}

/* Makes a child that gives up its terminal or gets one. With daemon() the child's child goes on. */
static long fork_a_session(const char *how)
{
	int master, slave;
	long child;

	if (!strcmp(how, "forkpty"))
		return forkpty(&master, NULL, NULL, NULL);
	if (!strcmp(how, "login_tty") && openpty(&master, &slave, NULL, NULL, NULL))
		return -1;
	child = fork();
	if (!child && (!strcmp(how, "daemon") ? daemon(1, 1) : login_tty(slave)))
		_exit(1);
	if (child > 0 && !strcmp(how, "daemon"))
		waitpid((pid_t)child, NULL, 0);
	else if (child > 0)
		close(slave);
	return child;
}

/* fork N how=fork|syscall|asm|clone|clone3|_Fork|namespace|forkpty|login_tty|daemon */
static void do_fork(const struct step *step)
{
	static const char *const sessions[] = { "forkpty", "login_tty", "daemon" };
	int number = actor_of(step);
	bool session = false;
	long child;

	if (!is_free(number))
		return;
	for (int i = 0; i < 3; i++)
		session |= is(step, "how", sessions[i]);
	if (is(step, "how", "namespace") && unshare(CLONE_NEWPID)) {
		note_result(-1);
		return;
	}
	child = session ? fork_a_session(text_of(step, "how", "fork"))
			: fork_by(text_of(step, "how", "fork"));
	if (!child) {
		register_actor(number);
		act(number);
	}
	if (child > 0)
		wait_for_actor(number);
	note_result(child > 0 ? 0 : child);
}

static void world_path(char *path, size_t size)
{
	snprintf(path, size, "%s/world", world->folder);
}

static char **environment_of(const struct step *step)
{
	static char *without[300];
	int count = 0;

	if (is(step, "env", "none"))
		return no_environment;
	if (!is(step, "env", "plain"))
		return environ;
	for (char **entry = environ; *entry && count < 299; entry++)
		if (strncmp(*entry, "LD_PRELOAD=", 11))
			without[count++] = *entry;
	without[count] = NULL;
	return without;
}

/* Executes another program by the given call. Calls without an environment argument use the
 * process's own environment. */
static void execute(const char *call, enum way way, char **arguments, char **environment)
{
	char **before = environ;
	int fd;

	if (!strcmp(call, "execveat") && way != PLAIN) {
		BY(way, -1, SYS_execveat, (long)AT_FDCWD, arguments[0], arguments, environment, 0L);
		return;
	}
	if (way != PLAIN) {
		BY(way, -1, SYS_execve, arguments[0], arguments, environment);
		return;
	}
	if (!strcmp(call, "execveat"))
		execveat(AT_FDCWD, arguments[0], arguments, environment, 0);
	if (!strcmp(call, "fexecve")) {
		fd = open(arguments[0], O_RDONLY | O_CLOEXEC);
		fexecve(fd, arguments, environment);
		close(fd);
	}
	environ = environment;
	if (!strcmp(call, "execv"))
		execv(arguments[0], arguments);
	if (!strcmp(call, "execvp"))
		execvp(arguments[0], arguments);
	if (!strcmp(call, "execl"))
		execl(arguments[0], arguments[0], arguments[1], arguments[2], arguments[3], NULL);
	if (!strcmp(call, "execlp"))
		execlp(arguments[0], arguments[0], arguments[1], arguments[2], arguments[3], NULL);
	environ = before;
	if (!strcmp(call, "execle"))
		execle(arguments[0], arguments[0], arguments[1], arguments[2], arguments[3], NULL,
		       environment);
	if (!strcmp(call, "execvpe"))
		execvpe(arguments[0], arguments, environment);
	execve(arguments[0], arguments, environment);
}

/* Makes a child with its parent's memory, by a direct vfork. The kernel ignores the arguments of
 * vfork; the first one here has the value of a flag of clone. */
static long vfork_by_hand(char **arguments, char **environment)
{
	long child;

	__asm__ volatile("syscall"
			 : "=a"(child)
			 : "a"((long)SYS_vfork), "D"((long)CLONE_VM)
			 : "rcx", "r11", "memory");
	if (!child) {
		raw(SYS_execve, (long)arguments[0], (long)arguments, (long)environment, 0, 0, 0);
		raw(SYS_exit_group, 127, 0, 0, 0, 0, 0);
	}
	return child;
}

/* Starts a program in a child, by `how`. */
static long start(const struct step *step, const char *how, char **arguments)
{
	char **environment = environment_of(step);
	pid_t child;
	int error;

	if (!strcmp(how, "posix_spawn") || !strcmp(how, "posix_spawnp")) {
		error = how[11] ? posix_spawnp(&child, arguments[0], NULL, NULL, arguments, environment)
				: posix_spawn(&child, arguments[0], NULL, NULL, arguments,
					      environment);
		errno = error;
		return error ? -1 : child;
	}
	if (!strcmp(how, "vfork")) {
		child = vfork();
		if (!child) {
			execve(arguments[0], arguments, environment);
			_exit(127);
		}
		return child;
	}
	if (!strcmp(how, "vforkasm"))
		return vfork_by_hand(arguments, environment);
	child = (pid_t)fork_by(how);
	if (!child) {
		execute(text_of(step, "call", "execve"), PLAIN, arguments, environment);
		_exit(127);
	}
	return child;
}

static void make_line(char *line, size_t size, char **arguments)
{
	size_t used = 0;

	line[0] = 0;
	for (; *arguments; arguments++)
		used += (size_t)snprintf(line + used, size - used, "%s ", *arguments);
}

/* spawn N how=posix_spawn|vfork|fork|...|system env=keep|plain|none: starts a new program, which
 * inherits the descriptors without close-on-exec. */
static void do_spawn(const struct step *step)
{
	char path[240], word[8], line[700];
	char *arguments[] = { world->self, "--actor", word, path, NULL };
	int number = actor_of(step);
	const char *how = text_of(step, "how", "posix_spawn");
	long child;

	if (!is_free(number))
		return;
	world_path(path, sizeof path);
	snprintf(word, sizeof word, "%d", number);
	if (!strcmp(how, "system")) {
		make_line(line, sizeof line - 2, arguments);
		strcat(line, "&");
		child = system(line);
		child = child ? -1 : 1;
	} else {
		child = start(step, how, arguments);
	}
	if (child > 0)
		wait_for_actor(number);
	note_result(child > 0 ? 0 : child);
}

/* exec call=execve|execv|... env=keep|plain|none: the actor executes a new program. */
static void do_exec(const struct step *step)
{
	char path[240], word[8];
	char *arguments[] = { world->self, "--actor", word, path, NULL };

	world_path(path, sizeof path);
	snprintf(word, sizeof word, "%d", own);
	execute(text_of(step, "call", "execve"), way_of(step), arguments, environment_of(step));
	note_result(-1);
}

/* Does the operation of a child that is not an actor: `WHAT V N`. */
static int child_does(const char *what, int index, long length)
{
	static char bytes[4096];
	struct var *var = &world->vars[index % VARS];
	long done = 0, part;

	if (length > (long)sizeof bytes)
		length = sizeof bytes;
	if (!strcmp(what, "close"))
		return close(var->fd) ? 3 : 0;
	if (!strcmp(what, "shutdown"))
		return shutdown(var->fd, SHUT_WR) ? 3 : 0;
	if (!strcmp(what, "write")) {
		begin_send(var, bytes, (size_t)length);
		part = write(var->fd, bytes, (size_t)length);
		end_send(var, part);
		return part == length ? 0 : 4;
	}
	if (!strcmp(what, "read")) {
		while (done < length) {
			part = read(var->fd, bytes, (size_t)(length - done));
			if (part <= 0)
				return 5;
			if (!check_received(var, bytes, part, false))
				return 6;
			done += part;
		}
	}
	return 0;
}

int child_mode(char **arguments)
{
	open_world(arguments[0]);
	return child_does(arguments[1], arguments[2] ? atoi(arguments[2]) : 0,
			  arguments[2] && arguments[3] ? atol(arguments[3]) : 0);
}

static void note_status(long status)
{
	if (status < 0)
		note_result(status);
	else if (WIFSIGNALED(status))
		note(" = killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
	else
		note(" = status %d", (int)WEXITSTATUS(status));
}

struct does {
	const char *what;
	int index;
	long length;
};

static int begin_child(void *does)
{
	const struct does *it = does;

	return child_does(it->what, it->index, it->length);
}

/* Makes a child by clone(), with a copy of the memory, which shares or copies the descriptor
 * table. */
static long clone_child(const struct step *step, const char *what)
{
	static char stack[256 * 1024];
	struct does does = { what, index_at(step, 0), number_of(step, "n", 1) };
	int flags = is(step, "how", "clonefiles") ? CLONE_FILES : 0;

	return clone(begin_child, stack + sizeof stack, flags | SIGCHLD, &does);
}

/* Runs a command by wordexp(), as a command substitution. */
static int expand(const char *line)
{
	char text[720];
	wordexp_t words;
	int error;

	snprintf(text, sizeof text, "$(%s)", line);
	error = wordexp(text, &words, 0);
	if (!error)
		wordfree(&words);
	return error;
}

/* child V how= what=nothing|close|shutdown|write|read n= env=: starts a child and waits for its
 * end. With how=system, popen, posix_spawn, vfork or exec the child executes another program. */
static void do_child(const struct step *step)
{
	const char *how = text_of(step, "how", "fork"), *what = text_of(step, "what", "nothing");
	char path[240], index[8], length[16], line[700];
	char *program[] = { world->self, "--child", path, (char *)what, index, length, NULL };
	bool nothing = !strcmp(what, "nothing");
	char *trivial[] = { "/bin/true", NULL };
	char **arguments = nothing ? trivial : program;
	int status = 0;
	long child;

	world_path(path, sizeof path);
	snprintf(index, sizeof index, "%d", index_at(step, 0));
	snprintf(length, sizeof length, "%ld", number_of(step, "n", 1));
	make_line(line, sizeof line, arguments);
	if (!strcmp(how, "system")) {
		note_status(system(line));
		return;
	}
	if (!strcmp(how, "wordexp")) {
		note(" = %d", expand(line));
		return;
	}
	if (!strcmp(how, "popen")) {
		FILE *pipe = popen(line, "r");

		if (pipe)
			while (fgetc(pipe) != EOF)
				;
		note_status(pipe ? pclose(pipe) : -1);
		return;
	}
	if (!strncmp(how, "posix_spawn", 11) || !strncmp(how, "vfork", 5)) {
		child = start(step, how, arguments);
	} else if (!strcmp(how, "exec")) {
		child = start(step, "fork", arguments);
	} else if (!strcmp(how, "clonefunction") || !strcmp(how, "clonefiles")) {
		child = clone_child(step, what);
	} else {
		child = fork_by(how);
		if (!child) {
			if (!is(step, "end", "exit"))
				_exit(child_does(what, index_at(step, 0), number_of(step, "n", 1)));
			exit(child_does(what, index_at(step, 0), number_of(step, "n", 1)));
		}
	}
	if (child > 0)
		child = waitpid((pid_t)child, &status, 0);
	note_status(child < 0 ? child : status);
}

/* exit how=_exit|_Exit|exit|quick_exit|kill|syscall|asm: ends the whole process. */
static void do_exit(const struct step *step)
{
	if (is(step, "how", "exit"))
		exit(0);
	if (is(step, "how", "kill"))
		raw(SYS_kill, getpid(), SIGKILL, 0, 0, 0, 0);
	if (is(step, "how", "quick_exit"))
		quick_exit(0);
	if (is(step, "how", "_Exit"))
		_Exit(0);
	if (is(step, "how", "syscall"))
		syscall(SYS_exit_group, 0L);
	if (is(step, "how", "asm"))
		raw(SYS_exit_group, 0, 0, 0, 0, 0, 0);
	_exit(0);
}

static void do_threadexit(const struct step *step)
{
	(void)step;
	pthread_exit(NULL);
}

/* user id=N how=setuid|seteuid|setreuid|setresuid */
static void do_user(const struct step *step)
{
	uid_t user = (uid_t)number_of(step, "id", 65534);

	if (is(step, "how", "seteuid"))
		note_result(seteuid(user));
	else if (is(step, "how", "setresuid"))
		note_result(BY(way_of(step), setresuid(user, user, user), SYS_setresuid, user, user,
			       user));
	else if (is(step, "how", "setreuid"))
		note_result(BY(way_of(step), setreuid(user, user), SYS_setreuid, user, user));
	else
		note_result(BY(way_of(step), setuid(user), SYS_setuid, user));
}

/* unshare how=files|filesystem|hostname|setns: for this thread. The last one enters the thread's
 * present namespace. */
static void do_unshare(const struct step *step)
{
	int flags = is(step, "how", "files")	    ? CLONE_FILES
		    : is(step, "how", "filesystem") ? CLONE_FS
						    : CLONE_NEWUTS;
	int fd;

	if (!is(step, "how", "setns")) {
		note_result(BY(way_of(step), unshare(flags), SYS_unshare, (long)flags));
		return;
	}
	fd = open("/proc/thread-self/ns/uts", O_RDONLY | O_CLOEXEC);
	note_result(BY(way_of(step), setns(fd, flags), SYS_setns, fd, (long)flags));
	close(fd);
}

const struct named processes[] = {
	{ "thread", do_thread }, { "fork", do_fork }, { "spawn", do_spawn },
	{ "exec", do_exec },	 { "child", do_child }, { "exit", do_exit },
	{ "threadexit", do_threadexit }, { "user", do_user },
	{ "unshare", do_unshare },
	{ NULL, NULL },
};
