/*
 *   differ PROGRAM [EXPECTED]    runs a program and prints what it observed
 *   differ --actor N WORLD       runs as a process of the program; another process starts it
 *   differ --child WORLD ...     runs as a child that does one operation
 *
 * EXPECTED is the output of a run on the kernel. From it the conductor knows which calls return at
 * which step, and waits for them on a slow machine. See CONTRIBUTING.md for the programs' language.
 */
#include "world.h"

#include <dlfcn.h>
#include <sys/resource.h>

int main(int argc, char **argv)
{
	struct rlimit files;

	if (argc < 2)
		return 2;
	/* A thread that ends loads this library, and would abort if no descriptor is free. */
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
