/*
 *   differ PROGRAM [EXPECTED]    runs a program and prints what it observed
 *   differ --actor N WORLD       one of its processes, which another has started
 *   differ --child WORLD ...     a child that does one thing
 *
 * EXPECTED is what a run on the kernel printed. It says which calls return at which step, so that
 * a slow machine is waited for. See CONTRIBUTING.md for the language of programs.
 */
#include "world.h"

#include <dlfcn.h>
#include <sys/resource.h>

int main(int argc, char **argv)
{
	struct rlimit files;

	if (argc < 2)
		return 2;
	/* A thread that ends needs it, and aborts where the program has no number left to open it by. */
	dlopen("libgcc_s.so.1", RTLD_NOW);
	if (!strcmp(argv[1], "--actor") && argc == 4) {
		open_world(argv[3]);
		catch_signals();
		register_actor(atoi(argv[2]));
		act(atoi(argv[2]));
	}
	if (!strcmp(argv[1], "--child") && argc >= 4)
		return child_mode(argv + 2);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	return conduct(argv[1], argc > 2 ? argv[2] : NULL);
}
