/* A library whose `shutdown` is an indirect function: to look it up by dlsym raises SIGUSR2, while
 * the dynamic loader's lock is taken, if the program handles that signal. */
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static int make_the_call(int fd, int how)
{
	return syscall(SYS_shutdown, fd, how);
}

static int (*resolve(void))(int, int)
{
	struct sigaction action;

	if (!sigaction(SIGUSR2, NULL, &action) && action.sa_handler != SIG_DFL)
		raise(SIGUSR2);
	return make_the_call;
}

int shutdown(int fd, int how) __attribute__((ifunc("resolve")));
