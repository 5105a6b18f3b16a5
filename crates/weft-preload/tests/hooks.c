/* Calls every hooked function once for a path of ours and once for another; run under LD_PRELOAD. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define NODE "/dev/infiniband/weft_eth0"
#define TYPE "/sys/class/infiniband/weft_eth0/ports/1/gid_attrs/types/0"
#define NDEV "/sys/class/infiniband/weft_eth0/ports/1/gid_attrs/ndevs/0"
#define NET "/sys/class/infiniband/weft_eth0/device/net"
#define MISSING "/dev/infiniband/weft_none/missing"

/* Exported by glibc for programs that were built before 2.33, and for fortified ones. */
int __xstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat(int, const char *, struct stat *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);

static void reads(int fd, const char *text)
{
	char buffer[64] = "";

	assert(fd >= 0);
	assert(read(fd, buffer, sizeof(buffer) - 1) == (ssize_t)strlen(text));
	assert(strcmp(buffer, text) == 0);
	assert(close(fd) == 0);
}

/* A call that takes (path, result): a character device, a directory, and nothing. */
#define STATS(type, call)                                                              \
	do {                                                                           \
		type st;                                                               \
		const char *path = NODE;                                               \
		errno = 4242;                                                          \
		assert((call) == 0 && errno == 4242);                                  \
		assert(S_ISCHR(st.st_mode) && (st.st_mode & 0666) == 0666);            \
		assert(major(st.st_rdev) == 231);                                      \
		path = "/proc";                                                        \
		assert((call) == 0 && S_ISDIR(st.st_mode) && errno == 4242);           \
		path = MISSING;                                                        \
		assert((call) == -1 && (errno == ENOENT || errno == ENOTDIR));         \
	} while (0)

#define OPENS(call)                                                                    \
	do {                                                                           \
		const char *path = TYPE;                                               \
		reads(call, "RoCE v2\n");                                              \
		path = NDEV;                                                           \
		reads(call, "eth0\n");                                                 \
		path = "/proc/sys/kernel/ostype";                                      \
		reads(call, "Linux\n");                                                \
		path = MISSING;                                                        \
		assert((call) == -1 && (errno == ENOENT || errno == ENOTDIR));         \
	} while (0)

#define ACCESSES(call_rw, call_x)                                                      \
	do {                                                                           \
		const char *path = NODE;                                               \
		assert((call_rw) == 0);                                                \
		assert((call_x) == -1 && errno == EACCES);                             \
		path = "/dev/null";                                                    \
		assert((call_rw) == 0);                                                \
		path = MISSING;                                                        \
		assert((call_rw) == -1 && (errno == ENOENT || errno == ENOTDIR));      \
	} while (0)

/* A directory of one entry, and one of the system's. */
#define LISTS(type, call)                                                              \
	do {                                                                           \
		DIR *dir = opendir(NET "/");                                           \
		DIR *other = opendir("/proc/self");                                    \
		type *entry;                                                           \
		int found = 0;                                                         \
		assert(dir && other);                                                  \
		entry = call(dir);                                                     \
		assert(entry && strcmp(entry->d_name, "eth0") == 0);                   \
		errno = 4242;                                                          \
		assert(!call(dir) && errno == 4242);                                   \
		while ((entry = call(other)))                                          \
			found |= strcmp(entry->d_name, "status") == 0;                 \
		assert(found && closedir(dir) == 0 && closedir(other) == 0);           \
		assert(!opendir(MISSING));                                             \
	} while (0)

/* Defined by the library under test. */
void weft_preload_ask_for_ports(bool (*release)(uint16_t port)) __attribute__((weak));

/* Volatile: the compiler takes bind and listen for functions that call nothing of this file. */
static volatile int held = -1;
static uint16_t held_port;

static bool release(uint16_t port)
{
	bool holds = held >= 0 && port == held_port;

	errno = EBADF; /* to be hidden from the program */
	if (holds) {
		close(held);
		held = -1;
	}
	return holds;
}

static int bound(uint16_t port, struct sockaddr_in *address)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	socklen_t length = sizeof(*address);

	assert(fd >= 0);
	assert(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
	memset(address, 0, sizeof(*address));
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	address->sin_port = htons(port);
	if (bind(fd, (struct sockaddr *)address, sizeof(*address)) != 0) {
		int error = errno;

		close(fd);
		errno = error;
		return -1;
	}
	assert(getsockname(fd, (struct sockaddr *)address, &length) == 0);
	return fd;
}

static void ports(void)
{
	struct sockaddr_in address;
	int other;

	/* Nobody to ask. */
	held = bound(0, &address);
	held_port = ntohs(address.sin_port);
	assert(listen(held, 1) == 0);
	assert(bound(held_port, &address) == -1 && errno == EADDRINUSE);
	assert(listen(-1, 1) == -1 && errno == EBADF);
	assert(bind(held, NULL, 0) == -1 && errno != EADDRINUSE);

	/* bind gets the port. */
	assert(weft_preload_ask_for_ports);
	weft_preload_ask_for_ports(release);
	other = bound(held_port, &address);
	assert(other >= 0 && held == -1 && listen(other, 1) == 0);

	/* The port of somebody else stays taken. */
	assert(bound(held_port, &address) == -1 && errno == EADDRINUSE);
	close(other);

	/* listen gets the port. */
	held = bound(0, &address);
	held_port = ntohs(address.sin_port);
	other = bound(held_port, &address);
	assert(other >= 0 && listen(held, 1) == 0);
	assert(listen(other, 1) == 0 && held == -1);
	close(other);
}

int main(void)
{
	char made[] = "/tmp/weft-hooks-XXXXXX";
	struct statx stx;
	struct stat st;
	int fd;

	STATS(struct stat, stat(path, &st));
	STATS(struct stat, lstat(path, &st));
	STATS(struct stat, fstatat(AT_FDCWD, path, &st, 0));
	STATS(struct stat, __xstat(1, path, &st));
	STATS(struct stat, __lxstat(1, path, &st));
	STATS(struct stat, __fxstatat(1, AT_FDCWD, path, &st, 0));
	STATS(struct stat64, stat64(path, &st));
	STATS(struct stat64, lstat64(path, &st));
	STATS(struct stat64, fstatat64(AT_FDCWD, path, &st, 0));
	STATS(struct stat64, __xstat64(1, path, &st));
	STATS(struct stat64, __lxstat64(1, path, &st));
	STATS(struct stat64, __fxstatat64(1, AT_FDCWD, path, &st, 0));

	assert(statx(AT_FDCWD, NODE, 0, STATX_BASIC_STATS, &stx) == 0);
	assert(S_ISCHR(stx.stx_mode) && stx.stx_rdev_major == 231);
	assert(statx(AT_FDCWD, "/proc", 0, STATX_BASIC_STATS, &stx) == 0);
	assert(S_ISDIR(stx.stx_mode));

	assert(stat(NET, &st) == 0 && S_ISDIR(st.st_mode));
	assert(access(NET, R_OK | X_OK) == 0 && access(NET, W_OK) == -1 && errno == EACCES);
	for (fd = 0; fd < 100; fd++) {
		LISTS(struct dirent, readdir);
		LISTS(struct dirent64, readdir64);
	}

	ACCESSES(access(path, R_OK | W_OK), access(path, X_OK));
	ACCESSES(faccessat(AT_FDCWD, path, R_OK | W_OK, 0), faccessat(AT_FDCWD, path, X_OK, 0));

	OPENS(open(path, O_RDONLY));
	OPENS(open64(path, O_RDONLY));
	OPENS(openat(AT_FDCWD, path, O_RDONLY));
	OPENS(openat64(AT_FDCWD, path, O_RDONLY));
	OPENS(__open_2(path, O_RDONLY));
	OPENS(__open64_2(path, O_RDONLY));
	OPENS(__openat_2(AT_FDCWD, path, O_RDONLY));
	OPENS(__openat64_2(AT_FDCWD, path, O_RDONLY));
	assert(open(TYPE, O_RDWR) == -1 && errno == EACCES);

	/* The mode of a new file gets through. */
	fd = mkstemp(made);
	assert(fd >= 0 && close(fd) == 0 && unlink(made) == 0);
	umask(0);
	fd = open(made, O_CREAT | O_EXCL | O_WRONLY, 0640);
	assert(fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 0777) == 0640);
	assert(close(fd) == 0 && unlink(made) == 0);
	ports();
	puts("hooks ok");
	return 0;
}
