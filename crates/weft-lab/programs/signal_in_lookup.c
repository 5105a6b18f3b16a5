/* A library whose `shutdown` and `bind` are indirect functions: to look them up by dlsym raises
 * SIGUSR2, while the dynamic loader's lock is taken, if the program handles that signal. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static int make_the_call(int fd, int how)
{
	return syscall(SYS_shutdown, fd, how);
}

static int make_the_other(int fd, const struct sockaddr *address, socklen_t len)
{
	return syscall(SYS_bind, fd, address, len);
}

static void raise_if_handled(void)
{
	struct sigaction action;

	if (!sigaction(SIGUSR2, NULL, &action) && action.sa_handler != SIG_DFL)
		raise(SIGUSR2);
}

static int (*resolve(void))(int, int)
{
	raise_if_handled();
	return make_the_call;
}

static int (*resolve_other(void))(int, const struct sockaddr *, socklen_t)
{
	raise_if_handled();
	return make_the_other;
}

int shutdown(int fd, int how) __attribute__((ifunc("resolve")));
int bind(int fd, const struct sockaddr *address, socklen_t len)
	__attribute__((ifunc("resolve_other")));
