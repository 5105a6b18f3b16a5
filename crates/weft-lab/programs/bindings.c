/*
 * Uses a connection by functions of the C library that were found in a way of their own, in turn
 * with the program's own calls. Prints what arrives.
 *
 *   bindings module FILE   the module is opened with RTLD_DEEPBIND
 *   bindings library       dlsym finds them in libc.so.6
 *   bindings next          dlsym finds them behind the program
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void check(int is_so, const char *what)
{
	if (!is_so) {
		perror(what);
		exit(1);
	}
}

static void print(const char *what, const char *bytes, ssize_t len)
{
	printf("%s: %.*s\n", what, len < 0 ? 5 : (int)len, len < 0 ? "error" : bytes);
}

static void connect_both(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char byte;

	check(!bind(listener, (void *)&address, sizeof address) && !listen(listener, 1), "listen");
	check(!getsockname(listener, (void *)&address, &len), "getsockname");
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	check(!connect(ends[0], (void *)&address, sizeof address), "connect");
	ends[1] = accept(listener, NULL, NULL);
	check(ends[1] >= 0, "accept");
	for (int i = 0; i < 8; i++) {
		check(write(ends[i & 1], "w", 1) == 1, "write");
		check(read(ends[~i & 1], &byte, 1) == 1, "read");
	}
}

static void *find(void *library, const char *name)
{
	void *found;

	dlerror();
	found = dlsym(library, name);
	check(found && !dlerror(), name);
	return found;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	const char *prefix = strcmp(how, "module") ? "" : "module_";
	ssize_t (*its_read)(int, void *, size_t);
	ssize_t (*its_write)(int, const void *, size_t);
	int (*its_close)(int);
	int ends[2], file;
	void *library = RTLD_NEXT;
	char bytes[64], name[64], path[] = "/tmp/bindings-XXXXXX";

	connect_both(ends);
	check(write(ends[0], "before", 6) == 6, "write"); /* unread while the library is opened */
	if (!strcmp(how, "module"))
		library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	else if (!strcmp(how, "library"))
		library = dlopen("libc.so.6", RTLD_LAZY);
	check(!!library, "dlopen");
	snprintf(name, sizeof name, "%sread", prefix);
	its_read = find(library, name);
	snprintf(name, sizeof name, "%swrite", prefix);
	its_write = find(library, name);
	snprintf(name, sizeof name, "%sclose", prefix);
	its_close = find(library, name);
	if (strcmp(how, "module"))
		check(((pid_t(*)(void))find(library, "getpid"))() == getpid(), "getpid");
	check(!dlsym(library, "no_such_function") && dlerror(), "a missing function");

	print("its read", bytes, its_read(ends[1], bytes, sizeof bytes));
	check(its_write(ends[1], "mixed", 5) == 5, "its write");
	print("read", bytes, read(ends[0], bytes, sizeof bytes));
	check(write(ends[0], "again", 5) == 5, "write");
	print("its read", bytes, its_read(ends[1], bytes, sizeof bytes));

	/* The closed connection's number becomes a file's. */
	check(!its_close(ends[1]), "its close");
	file = mkstemp(path);
	check(file >= 0 && !unlink(path), "mkstemp");
	printf("%s number\n", file == ends[1] ? "the same" : "another");
	check(write(file, "file", 4) == 4 && !lseek(file, 0, SEEK_SET), "write");
	print("file", bytes, read(file, bytes, sizeof bytes));
	print("end", bytes, read(ends[0], bytes, sizeof bytes));
	return 0;
}
