/* Any call of the table with any arguments, valid or not. The result is compared, and the bytes
 * that the call writes through pointers. Calls that move bytes of streams are in transfers.c. */
#include "world.h"

#include <dirent.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451 /* Newer than some systems' headers. */
#endif

enum { PLACE = 4096 };

typedef long function(long, ...);

/* A call by its function and its number. On x86-64 the C library's functions take their arguments
 * in the same registers as a variadic function. Those that return an `int` set 32 bits of the
 * result. */
struct call {
	const char *name;
	function *plain;
	long number;
	bool wide;
};

#define NARROW(name) { #name, (function *)(uintptr_t)name, SYS_##name, false }
#define WIDE(name) { #name, (function *)(uintptr_t)name, SYS_##name, true }
#define NUMBERED(name, number, wide) { #name, (function *)(uintptr_t)name, number, wide }
/* A call without a function in the C library. */
#define NUMBER(name) { #name, NULL, SYS_##name, true }

static const struct call calls[] = {
	/* Calls that query a descriptor. */
	NARROW(fstat), NARROW(listen), NARROW(getsockname), NARROW(getpeername), NARROW(flock),
	NARROW(fchmod), NARROW(fchown), NARROW(fstatfs), NARROW(fsetxattr), WIDE(fgetxattr),
	WIDE(flistxattr), NARROW(fremovexattr),
	/* Calls that fail on a socket. */
	WIDE(lseek), NUMBERED(pread, SYS_pread64, true), WIDE(pread64),
	NUMBERED(pwrite, SYS_pwrite64, true), WIDE(pwrite64), NARROW(fsync), NARROW(fdatasync),
	NARROW(ftruncate), NUMBER(getdents), WIDE(getdents64), NARROW(fchdir), WIDE(readahead),
	NUMBERED(posix_fadvise, SYS_fadvise64, false), NUMBER(fadvise64), WIDE(tee),
	NARROW(sync_file_range), WIDE(vmsplice), NARROW(fallocate), WIDE(preadv),
	NUMBERED(preadv64, SYS_preadv, true), WIDE(pwritev), NUMBERED(pwritev64, SYS_pwritev, true),
	NARROW(syncfs), WIDE(copy_file_range), NUMBER(cachestat),
	/* Calls that need another kind of descriptor. */
	NUMBER(bpf), NUMBER(io_uring_enter), NUMBER(io_uring_register),
	/* Calls that move bytes. */
	WIDE(read), WIDE(write), WIDE(readv), WIDE(writev), WIDE(recvfrom), WIDE(sendto),
	WIDE(recvmsg), WIDE(sendmsg), NARROW(recvmmsg), NARROW(sendmmsg), WIDE(sendfile),
	WIDE(splice), WIDE(preadv2), WIDE(pwritev2),
	/* Calls that make, copy or close descriptors. */
	NARROW(close), NARROW(dup), NARROW(dup2), NARROW(dup3), NARROW(socket), NARROW(connect),
	NARROW(bind), NARROW(accept), NARROW(accept4), NARROW(close_range), NARROW(fcntl),
	NARROW(socketpair),
	/* Calls that query or change a socket. */
	NARROW(ioctl), NARROW(shutdown), NARROW(setsockopt), NARROW(getsockopt),
	NUMBERED(sockatmark, -1, false),
	/* Calls that wait. */
	NARROW(poll), NARROW(ppoll), NARROW(select),
	NUMBERED(pselect, SYS_pselect6, false), NARROW(epoll_create),
	NARROW(epoll_create1), NARROW(epoll_ctl), NARROW(epoll_wait), NARROW(epoll_pwait),
	NARROW(epoll_pwait2),
};

/* The memory to which arguments point, initialised for each call. */
struct places {
	_Alignas(16) char bytes[PLACE];
	struct iovec vector[2], low_vector[2];
	struct mmsghdr message, low_message;
	struct timespec none, wrong;
	struct epoll_event event;
	socklen_t size, wrong_size;
	int word;
	bool size_used, word_used;
};

/* An argument is `v3`, a number or a place. `low` and `high` are invalid addresses. */
static long argument_of(const char *word, struct places *places)
{
	if (word[0] == 'v' && word[1] >= '0' && word[1] <= '9')
		return world->vars[atoi(word + 1) % VARS].fd;
	if (!strcmp(word, "null"))
		return 0;
	if (!strcmp(word, "low"))
		return 16;
	if (!strcmp(word, "high"))
		return (long)0xffff888000000000;
	if (!strcmp(word, "buf"))
		return (long)places->bytes;
	if (!strcmp(word, "name"))
		return (long)"user.weft";
	if (!strcmp(word, "size")) {
		places->size_used = true;
		return (long)&places->size;
	}
	if (!strcmp(word, "wrongsize"))
		return (long)&places->wrong_size;
	if (!strcmp(word, "word")) {
		places->word_used = true;
		return (long)&places->word;
	}
	if (!strcmp(word, "iov"))
		return (long)places->vector;
	if (!strcmp(word, "lowiov"))
		return (long)places->low_vector;
	if (!strcmp(word, "msg"))
		return (long)&places->message;
	if (!strcmp(word, "lowmsg"))
		return (long)&places->low_message;
	if (!strcmp(word, "none"))
		return (long)&places->none;
	if (!strcmp(word, "wrongtime"))
		return (long)&places->wrong;
	if (!strcmp(word, "event"))
		return (long)&places->event;
	return strtol(word, NULL, 0);
}

static void make_places(struct places *places)
{
	memset(places, 0, sizeof *places);
	places->size = sizeof(struct sockaddr_storage);
	places->wrong_size = (socklen_t)-1;
	places->wrong.tv_nsec = 2000000000;
	places->vector[0] = (struct iovec){ places->bytes, 0 };
	places->vector[1] = (struct iovec){ places->bytes, 0 };
	places->low_vector[0] = (struct iovec){ (void *)16, 10 };
	places->low_vector[1] = (struct iovec){ (void *)16, 10 };
	places->message.msg_hdr.msg_iov = places->vector;
	places->message.msg_hdr.msg_iovlen = 2;
	places->low_message.msg_hdr.msg_iov = places->low_vector;
	places->low_message.msg_hdr.msg_iovlen = 1;
	places->event.events = EPOLLIN;
}

static void note_places(const struct places *places)
{
	if (places->size_used)
		note(" size %u", places->size);
	if (places->word_used)
		note(" word %d", places->word);
}

static const struct call *find(const char *name)
{
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
		if (!strcmp(calls[i].name, name))
			return &calls[i];
	return NULL;
}

/* call NAME ARGUMENT... way= */
static void do_call(const struct step *step)
{
	const struct call *call = step->count > 2 ? find(step->words[2]) : NULL;
	static _Thread_local struct places places;
	long a[6] = { 0 }, result;
	enum way way = way_of(step);
	int count = 0, error;

	make_places(&places);
	for (int i = 3; i < step->count && count < 6 && !strchr(step->words[i], '='); i++)
		a[count++] = argument_of(step->words[i], &places);
	if (!call || (!call->plain && way == PLAIN) || (call->number < 0 && way != PLAIN)) {
		note(" = no such call");
		return;
	}
	errno = 0;
	result = way == PLAIN	? call->plain(a[0], a[1], a[2], a[3], a[4], a[5])
		 : way == SYSCALL ? syscall(call->number, a[0], a[1], a[2], a[3], a[4], a[5])
				  : by_hand(call->number, a[0], a[1], a[2], a[3], a[4], a[5]);
	error = errno;
	if (!call->wide)
		result = (int)result;
	if (result >= 0)
		note_places(&places);
	errno = error;
	note_result(result);
}

const struct named any_calls[] = {
	{ "call", do_call },
	{ NULL, NULL },
};
