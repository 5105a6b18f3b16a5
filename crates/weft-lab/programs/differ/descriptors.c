/* Steps that close, copy and pass descriptors, change their flags, and copy bytes between them. */
#include "world.h"

#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/sendfile.h>

extern int closed_in_handler;

static void do_close(const struct step *step)
{
	int fd = var_at(step, 0)->fd;
	enum way way = way_of(step);
	long result;

	if (way == URING && uring_do(19, fd, NULL, 0, 0, 0, &result)) {
		note_result(result);
		return;
	}
	if (is(step, "call", "range")) {
		note_result(BY(way, close_range(fd, fd, 0), SYS_close_range, fd, fd, 0L));
		return;
	}
	if (is(step, "call", "__close")) {
		note_result(__close(fd));
		return;
	}
	note_result(BY(way, close(fd), SYS_close, fd));
}

/* closerange FIRST LAST flags=: closes all numbers of the range; 2 is CLOSE_RANGE_UNSHARE, 4 is
 * CLOSE_RANGE_CLOEXEC. With a single variable closefrom closes all numbers from FIRST. */
static void do_closerange(const struct step *step)
{
	unsigned first = (unsigned)var_at(step, 0)->fd, last = (unsigned)var_at(step, 1)->fd;
	int flags = (int)number_of(step, "flags", 0);

	if (first < 3 || first > 900) {
		note(" = not this");
		return;
	}
	if (is(step, "call", "closefrom")) {
		closefrom((int)first);
		note(" = done");
		return;
	}
	if (is(step, "to", "end"))
		last = ~0U;
	note_result(BY(way_of(step), close_range(first, last, flags), SYS_close_range, first, last,
		       (long)flags));
}

/* getfd V NEW from=ACTOR open=plain|syscall: copies V's descriptor from another process. */
static void do_getfd(const struct step *step)
{
	struct var *var = var_at(step, 0), *new = var_at(step, 1);
	int pid = world->actors[number_of(step, "from", 0) % ACTORS].pid;
	int pidfd = is(step, "open", "syscall") ? (int)syscall(SYS_pidfd_open, pid, 0)
						: pidfd_open(pid, 0);
	int fd;

	if (gave_up_calls) {
		note(" refused there"); /* Weft refuses this; the kernel's result counts as equal. */
		close(pidfd);
		return;
	}
	if (pidfd < 0) {
		note(" no process");
		note_result(-1);
		return;
	}
	fd = way_of(step) == PLAIN ? pidfd_getfd(pidfd, var->fd, 0)
				   : (int)BY(way_of(step), -1, SYS_pidfd_getfd, pidfd, var->fd, 0L);
	note_result(fd < 0 ? fd : 0);
	close(pidfd);
	if (fd >= 0) {
		*new = *var;
		new->fd = fd;
	}
}

/* dup OLD NEW how=dup|dupfd|cloexec|dup2|dup3: the last two replace NEW's descriptor. */
static void do_dup(const struct step *step)
{
	struct var *old = var_at(step, 0), *new = var_at(step, 1);
	const char *how = text_of(step, "how", "dup");
	enum way way = way_of(step);
	int flags = (int)number_of(step, "flags", 0), fd;
	long least = number_of(step, "least", 0);

	if (!strcmp(how, "dupfd"))
		fd = BY(way, fcntl(old->fd, F_DUPFD, least), SYS_fcntl, old->fd, (long)F_DUPFD,
			least);
	else if (!strcmp(how, "cloexec"))
		fd = BY(way, fcntl(old->fd, F_DUPFD_CLOEXEC, least), SYS_fcntl, old->fd,
			(long)F_DUPFD_CLOEXEC, least);
	else if (!strcmp(how, "__fcntl"))
		fd = __fcntl(old->fd, F_DUPFD, least);
	else if (!strcmp(how, "__dup2"))
		fd = __dup2(old->fd, new->fd);
	else if (!strcmp(how, "dup2"))
		fd = BY(way, dup2(old->fd, new->fd), SYS_dup2, old->fd, new->fd);
	else if (!strcmp(how, "dup3"))
		fd = BY(way, dup3(old->fd, new->fd, flags), SYS_dup3, old->fd, new->fd,
			(long)flags);
	else
		fd = BY(way, dup(old->fd), SYS_dup, old->fd);
	note_result(fd);
	if (fd >= 0) {
		*new = *old;
		new->fd = fd;
	}
}

/* set V what=nonblock|cloexec|async|append|owner|signal on=0|1 how=fcntl|ioctl */
static void do_set(const struct step *step)
{
	int fd = var_at(step, 0)->fd, on = (int)number_of(step, "on", 1), flags, flag;
	enum way way = way_of(step);

	if (is(step, "what", "cloexec")) {
		note_result(BY(way, fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0), SYS_fcntl, fd,
			       (long)F_SETFD, on ? (long)FD_CLOEXEC : 0L));
		return;
	}
	if (is(step, "what", "owner")) {
		note_result(BY(way, fcntl(fd, F_SETOWN, getpid()), SYS_fcntl, fd, (long)F_SETOWN,
			       (long)getpid()));
		return;
	}
	if (is(step, "what", "signal")) {
		long number = on ? SIGUSR2 : 0;

		note_result(BY(way, fcntl(fd, F_SETSIG, number), SYS_fcntl, fd, (long)F_SETSIG,
			       number));
		return;
	}
	flag = is(step, "what", "async")    ? O_ASYNC
	       : is(step, "what", "append") ? O_APPEND
					    : O_NONBLOCK;
	if (is(step, "how", "ioctl")) {
		long request = flag == O_ASYNC ? FIOASYNC : FIONBIO;

		note_result(BY(way, ioctl(fd, request, &on), SYS_ioctl, fd, request, &on));
		return;
	}
	flags = fcntl(fd, F_GETFL);
	if (flags >= 0)
		flags = on ? flags | flag : flags & ~flag;
	note_result(BY(way, fcntl(fd, F_SETFL, flags), SYS_fcntl, fd, (long)F_SETFL, (long)flags));
}

/* get V what=flags|cloexec|unread|unsent|error|type|name|mark */
static void do_get(const struct step *step)
{
	int fd = var_at(step, 0)->fd, value = -1;
	enum way way = way_of(step);
	socklen_t length = sizeof value;
	struct sockaddr_storage address;
	long result;

	if (is(step, "what", "flags")) {
		result = BY(way, fcntl(fd, F_GETFL), SYS_fcntl, fd, (long)F_GETFL, 0L);
	} else if (is(step, "what", "cloexec")) {
		result = BY(way, fcntl(fd, F_GETFD), SYS_fcntl, fd, (long)F_GETFD, 0L);
	} else if (is(step, "what", "unread") || is(step, "what", "unsent")) {
		long request = is(step, "what", "unread") ? FIONREAD : TIOCOUTQ;

		result = BY(way, ioctl(fd, request, &value), SYS_ioctl, fd, request, &value);
		note(" %d", value);
	} else if (is(step, "what", "mark")) {
		result = BY(way, ioctl(fd, SIOCATMARK, &value), SYS_ioctl, fd, (long)SIOCATMARK,
			    &value);
		note(" %d", value);
	} else if (is(step, "what", "name")) {
		length = sizeof address;
		result = BY(way, getpeername(fd, (struct sockaddr *)&address, &length),
			    SYS_getpeername, fd, &address, &length);
	} else {
		int name = is(step, "what", "type") ? SO_TYPE : SO_ERROR;

		result = BY(way, getsockopt(fd, SOL_SOCKET, name, &value, &length), SYS_getsockopt,
			    fd, (long)SOL_SOCKET, (long)name, &value, &length);
		note(" %d", value);
	}
	note_result(result);
}

static void do_shutdown(const struct step *step)
{
	int fd = var_at(step, 0)->fd, how = (int)number_of(step, "how", 1);

	note_result(BY(way_of(step), shutdown(fd, how), SYS_shutdown, fd, how));
}

/* pass V VIA: sends V's descriptor over the Unix socket VIA. */
static void do_pass(const struct step *step)
{
	struct var *var = var_at(step, 0), *via = var_at(step, 1);
	_Alignas(8) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec vector = { "p", 1 };
	struct msghdr message = { .msg_iov = &vector,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	struct conn *conn;
	long result;

	header->cmsg_len = CMSG_LEN(sizeof(int));
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(header), &var->fd, sizeof(int));
	result = BY(way_of(step), sendmsg(via->fd, &message, 0), SYS_sendmsg, via->fd, &message,
		    0L);
	note_result(result);
	if (result == 1 && via->kind == STRANGER) {
		conn = &world->conns[via->out];
		conn->passed[via->out_way][conn->passed_last[via->out_way]++ % 16] =
			(uint8_t)index_at(step, 0);
	}
}

/* take NEW VIA */
static void do_take(const struct step *step)
{
	struct var *var = var_at(step, 0), *via = var_at(step, 1);
	_Alignas(8) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	char byte;
	struct iovec vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = &vector,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof control };
	struct cmsghdr *header;
	struct conn *conn;
	long result;

	result = BY(way_of(step), recvmsg(via->fd, &message, MSG_DONTWAIT), SYS_recvmsg, via->fd,
		    &message, (long)MSG_DONTWAIT);
	note_result(result);
	header = CMSG_FIRSTHDR(&message);
	if (result != 1 || !header || via->kind != STRANGER)
		return;
	conn = &world->conns[via->in];
	if (conn->passed_first[via->in_way] == conn->passed_last[via->in_way])
		return;
	*var = world->vars[conn->passed[via->in_way][conn->passed_first[via->in_way]++ % 16]];
	memcpy(&var->fd, CMSG_DATA(header), sizeof(int));
	note(" descriptor");
}

/* move FROM TO n= how=sendfile|splice|tee flags=: the kernel copies from or to a file or a pipe.
 * The bytes keep the pattern of their source: `refill` changes it to that of their destination. */
static void do_move(const struct step *step)
{
	struct var *from = var_at(step, 0), *to = var_at(step, 1);
	long length = number_of(step, "n", 1), result, moved;
	unsigned flags = (unsigned)number_of(step, "flags", 0);
	loff_t start = 0;
	enum way way = way_of(step);

	if (to->out >= 0)
		world->conns[to->out].way[to->out_way].offered += (uint64_t)length;
	if (is(step, "how", "sendfile"))
		result = BY(way, sendfile(to->fd, from->fd, &start, length), SYS_sendfile, to->fd,
			    from->fd, &start, length);
	else if (is(step, "how", "tee"))
		result = BY(way, tee(from->fd, to->fd, length, flags), SYS_tee, from->fd, to->fd,
			    length, (long)flags);
	else
		result = BY(way, splice(from->fd, NULL, to->fd, NULL, length, flags), SYS_splice,
			    from->fd, NULL, to->fd, NULL, length, (long)flags);
	moved = result > 0 ? result : 0;
	/* How many bytes fit is not determined. */
	if (number_of(step, "loose", 0))
		note(" = returned");
	else
		note_result(result);
	if (to->out >= 0) {
		world->conns[to->out].way[to->out_way].sent += (uint64_t)moved;
		world->conns[to->out].way[to->out_way].offered -= (uint64_t)(length - moved);
	}
	if (from->in >= 0 && from->kind != PLAIN_FILE && !is(step, "how", "tee"))
		world->conns[from->in].way[from->in_way].received += (uint64_t)moved;
}

/* supply V TO n=: writes the next bytes of the stream TO into V, a pipe or a file. */
static void do_supply(const struct step *step)
{
	struct var *var = var_at(step, 0), *to = var_at(step, 1);
	static _Thread_local char bytes[65536];
	long length = number_of(step, "n", 1), result;
	uint64_t from;

	if (to->out < 0 || length < 0 || length > (long)sizeof bytes) {
		note(" = nothing");
		return;
	}
	from = world->conns[to->out].way[to->out_way].sent;
	for (long i = 0; i < length; i++)
		bytes[i] = byte_of(to->out, to->out_way, from + (uint64_t)i);
	if (var->kind == PLAIN_FILE)
		result = pwrite(var->fd, bytes, length, 0);
	else
		result = write(var->fd, bytes, length);
	note_result(result);
}

/* consume V FROM n=: reads bytes from the pipe V that came from the stream FROM. */
static void do_consume(const struct step *step)
{
	struct var *var = var_at(step, 0), *from = var_at(step, 1);
	static _Thread_local char bytes[65536];
	long length = number_of(step, "n", 1), result;
	uint64_t at;

	if (length < 0 || length > (long)sizeof bytes)
		length = sizeof bytes;
	fcntl(var->fd, F_SETFL, O_NONBLOCK);
	result = read(var->fd, bytes, length);
	if (result > 0 && from->in >= 0) {
		at = world->conns[from->in].way[from->in_way].received - (uint64_t)result;
		for (long i = 0; i < result; i++)
			if (bytes[i] != byte_of(from->in, from->in_way, at + (uint64_t)i)) {
				note(" FOREIGN at %ld of connection %d.%d, %lu", i, from->in,
				     from->in_way, at);
				break;
			}
	}
	note_result(result);
}

/* onsignal V: the next SIGUSR1 of this process closes it. */
static void do_onsignal(const struct step *step)
{
	closed_in_handler = var_at(step, 0)->fd;
	note(" = ok");
}

const struct named descriptors[] = {
	{ "close", do_close },	   { "dup", do_dup },	      { "set", do_set },
	{ "closerange", do_closerange }, { "getfd", do_getfd },
	{ "get", do_get },	   { "shutdown", do_shutdown },
	{ "pass", do_pass },	   { "take", do_take },	      { "move", do_move },
	{ "supply", do_supply },   { "consume", do_consume }, { "onsignal", do_onsignal },
	{ NULL, NULL },
};
