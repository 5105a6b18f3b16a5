/* Steps that send and receive, by every call that can. */
#include "world.h"

#include <linux/aio_abi.h>
#include <netinet/ip.h>

static _Thread_local char buffer[BYTES_MAX];

static int flags_of(const struct step *step)
{
	static const struct {
		const char *name;
		int flag;
	} names[] = {
		{ "PEEK", MSG_PEEK },	  { "WAITALL", MSG_WAITALL },	{ "DONTWAIT", MSG_DONTWAIT },
		{ "TRUNC", MSG_TRUNC },	  { "OOB", MSG_OOB },		{ "NOSIGNAL", MSG_NOSIGNAL },
		{ "MORE", MSG_MORE },	  { "ERRQUEUE", MSG_ERRQUEUE }, { "EOR", MSG_EOR },
		{ "BAD", 0x08000000 },
	};
	const char *text = text_of(step, "flags", "");
	int flags = 0;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strstr(text, names[i].name))
			flags |= names[i].flag;
	return flags;
}

static long clamp(long length)
{
	return length < 0 ? 0 : length > BYTES_MAX ? BYTES_MAX : length;
}

/* Splits a buffer into `pieces`, the first of which is empty if there are more than two. */
static int split(struct iovec *vector, char *bytes, size_t length, int pieces)
{
	size_t done = 0, part;

	if (pieces < 1)
		return 0;
	if (pieces > 4)
		pieces = 4;
	for (int i = 0; i < pieces; i++) {
		part = i + 1 == pieces ? length - done : pieces > 2 && i == 0 ? 0 : length / pieces;
		vector[i] = (struct iovec){ bytes + done, part };
		done += part;
	}
	return pieces;
}

/* Ancillary data that TCP ignores. */
static void add_control(struct msghdr *message, char *control)
{
	struct cmsghdr *header = (struct cmsghdr *)control;
	int ttl = 64;

	memset(control, 0, CMSG_SPACE(sizeof ttl));
	header->cmsg_len = CMSG_LEN(sizeof ttl);
	header->cmsg_level = SOL_IP;
	header->cmsg_type = IP_TTL;
	memcpy(CMSG_DATA(header), &ttl, sizeof ttl);
	message->msg_control = control;
	message->msg_controllen = CMSG_SPACE(sizeof ttl);
}

/* Returns the type of a socket, or 0 if the descriptor is not a socket. */
static int socket_type(int fd)
{
	int type;
	socklen_t length = sizeof type;

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) ? 0 : type;
}

/* Waits as a ring does: also on a non-blocking socket, and without the socket's time limit. The
 * first signal interrupts only the submission (see uring_do). Returns false at a second signal. */
static bool wait_as_a_ring(int fd, short events, int flags, int *signals)
{
	struct pollfd place = { .fd = fd, .events = events };

	if (fd < 0 || !socket_type(fd) || flags & MSG_DONTWAIT)
		return true;
	while (poll(&place, 1, -1) < 0)
		if (errno != EINTR || ++*signals > 1)
			return false;
	return true;
}

/* Returns the flags of a ring's attempt: it does not block, and waits for readiness in between. */
static int flags_of_a_try(int fd, int flags)
{
	return fd >= 0 && socket_type(fd) ? flags | MSG_DONTWAIT : flags;
}

static long send_as_a_ring(int fd, const char *bytes, size_t length, int flags)
{
	int signals = 0;
	long sent;

	/* The first attempt comes before a wait: a Unix socket takes bytes long before it is ready. */
	while ((sent = send(fd, bytes, length, flags_of_a_try(fd, flags))) < 0 && errno == EAGAIN &&
	       !(flags & MSG_DONTWAIT))
		if (!wait_as_a_ring(fd, POLLOUT, flags, &signals))
			return -1;
	return sent;
}

/* Receives as a ring does, the whole length with MSG_WAITALL. A signal ends the wait for the ring,
 * and the bytes that it has received are lost. */
static long receive_as_a_ring(int fd, char *bytes, size_t length, int flags)
{
	bool whole = flags & MSG_WAITALL && !(flags & (MSG_DONTWAIT | MSG_OOB)) &&
		     socket_type(fd) == SOCK_STREAM;
	/* The first attempt comes before a wait: a socket with SO_RCVLOWAT has fewer bytes than that
	 * long before it is ready. */
	bool waits_first = flags & (MSG_OOB | MSG_ERRQUEUE);
	int signals = 0;
	size_t done = 0;
	long got;

	do {
		if (waits_first && !wait_as_a_ring(fd, POLLIN | POLLRDHUP, flags, &signals))
			return -1;
		got = recv(fd, bytes + done, length - done, flags_of_a_try(fd, flags));
		if (got < 0 && errno == EAGAIN && !waits_first && !(flags & MSG_DONTWAIT)) {
			if (!wait_as_a_ring(fd, POLLIN | POLLRDHUP, flags, &signals))
				return -1;
			continue;
		}
		if (got <= 0)
			return done ? (long)done : got;
		done += (size_t)got;
	} while (done == 0 || (whole && done < length));
	return (long)done;
}

static long send_by(const struct step *step, int fd, char *bytes, size_t length, int flags)
{
	_Alignas(8) char control[CMSG_SPACE(sizeof(int))];
	enum way way = way_of(step);
	const char *call = text_of(step, "call", "send");
	struct iovec vector[4];
	int pieces = split(vector, bytes, length, (int)number_of(step, "pieces", 2));
	struct mmsghdr message = { .msg_hdr = { .msg_iov = vector, .msg_iovlen = pieces } };
	long result;

	if (number_of(step, "control", 0))
		add_control(&message.msg_hdr, control);
	if (way == URING &&
	    uring_do(*call == 'w' ? 23 : 26, fd, bytes, (unsigned)length,
		     *call == 'w' ? (uint64_t)-1 : 0, *call == 'w' ? 0 : flags, &result))
		return result;
	if (way == URING && *call == 'w')
		return write(fd, bytes, length);
	if (way == URING)
		return send_as_a_ring(fd, bytes, length, flags);
	if (way == AIO)
		return aio_transfer(true, fd, bytes, length);
	if (way == LIST)
		return listed_transfer(true, fd, bytes, length);
	if (way == SUBMIT && !strcmp(call, "writev"))
		return submitted_transfer(IOCB_CMD_PWRITEV, fd, vector, (size_t)pieces);
	if (way == SUBMIT)
		return submitted_transfer(IOCB_CMD_PWRITE, fd, bytes, length);
	if (!strcmp(call, "__write"))
		return __write(fd, bytes, length);
	if (!strcmp(call, "__send"))
		return __send(fd, bytes, length, flags);
	if (!strcmp(call, "write"))
		return BY(way, write(fd, bytes, length), SYS_write, fd, bytes, length);
	if (!strcmp(call, "writev"))
		return BY(way, writev(fd, vector, pieces), SYS_writev, fd, vector, pieces);
	if (!strcmp(call, "pwritev2"))
		return BY(way, pwritev2(fd, vector, pieces, -1, 0), SYS_pwritev2, fd, vector,
			  (long)pieces, -1L, -1L, 0L);
	if (!strcmp(call, "pwrite"))
		return BY(way, pwrite(fd, bytes, length, 0), SYS_pwrite64, fd, bytes, length, 0L);
	if (!strcmp(call, "sendto"))
		return BY(way, sendto(fd, bytes, length, flags, NULL, 0), SYS_sendto, fd, bytes,
			  length, (long)flags, NULL, 0L);
	if (!strcmp(call, "sendmsg"))
		return BY(way, sendmsg(fd, &message.msg_hdr, flags), SYS_sendmsg, fd,
			  &message.msg_hdr, (long)flags);
	if (!strcmp(call, "sendmmsg")) {
		result = BY(way, sendmmsg(fd, &message, 1, flags), SYS_sendmmsg, fd, &message, 1L,
			    (long)flags);
		return result > 0 ? message.msg_len : result;
	}
	return BY(way, send(fd, bytes, length, flags), SYS_sendto, fd, bytes, length, (long)flags,
		  NULL, 0L);
}

static void do_send(const struct step *step)
{
	struct var *var = var_at(step, 0);
	int flags = flags_of(step);
	long length = clamp(number_of(step, "n", 1)), result;

	if (flags & MSG_OOB) {
		/* Urgent data is not a part of the stream. */
		note_result(BY(way_of(step), send(var->fd, "!", 1, flags), SYS_sendto, var->fd, "!",
			       1L, (long)flags, NULL, 0L));
		return;
	}
	begin_send(var, buffer, length);
	errno = 0;
	result = send_by(step, var->fd, buffer, length, flags);
	note_result(result);
	end_send(var, number_of(step, "lost", 0) ? -1 : result);
}

static long receive_by(const struct step *step, int fd, char *bytes, size_t length, int flags)
{
	enum way way = way_of(step);
	const char *call = text_of(step, "call", "recv");
	struct sockaddr_storage from = { 0 };
	socklen_t size = (socklen_t)number_of(step, "size", sizeof from);
	struct iovec vector[4];
	int pieces = split(vector, bytes, length, (int)number_of(step, "pieces", 2));
	struct mmsghdr message = { .msg_hdr = { .msg_iov = vector, .msg_iovlen = pieces } };
	long result;

	if (way == URING && !strcmp(call, "read") &&
	    uring_do(22, fd, bytes, (unsigned)length, (uint64_t)-1, 0, &result))
		return result;
	if (way == URING && strcmp(call, "read") &&
	    uring_do(27, fd, bytes, (unsigned)length, 0, flags, &result))
		return result;
	if (way == URING && !strcmp(call, "read"))
		return read(fd, bytes, length);
	if (way == URING)
		return receive_as_a_ring(fd, bytes, length, flags);
	if (way == AIO)
		return aio_transfer(false, fd, bytes, length);
	if (way == LIST)
		return listed_transfer(false, fd, bytes, length);
	if (way == SUBMIT && !strcmp(call, "readv"))
		return submitted_transfer(IOCB_CMD_PREADV, fd, vector, (size_t)pieces);
	if (way == SUBMIT)
		return submitted_transfer(IOCB_CMD_PREAD, fd, bytes, length);
	if (!strcmp(call, "__read"))
		return __read(fd, bytes, length);
	if (!strcmp(call, "read"))
		return BY(way, read(fd, bytes, length), SYS_read, fd, bytes, length);
	if (!strcmp(call, "readv"))
		return BY(way, readv(fd, vector, pieces), SYS_readv, fd, vector, (long)pieces);
	if (!strcmp(call, "preadv2"))
		return BY(way, preadv2(fd, vector, pieces, -1, 0), SYS_preadv2, fd, vector,
			  (long)pieces, -1L, -1L, 0L);
	if (!strcmp(call, "pread"))
		return BY(way, pread(fd, bytes, length, 0), SYS_pread64, fd, bytes, length, 0L);
	if (!strcmp(call, "recvfrom")) {
		result = BY(way, recvfrom(fd, bytes, length, flags, (struct sockaddr *)&from, &size),
			    SYS_recvfrom, fd, bytes, length, (long)flags, &from, &size);
		if (result >= 0)
			note(" from %d %d", from.ss_family, (int)size);
		return result;
	}
	if (!strcmp(call, "recvmsg")) {
		message.msg_hdr.msg_flags = -1;
		result = BY(way, recvmsg(fd, &message.msg_hdr, flags), SYS_recvmsg, fd,
			    &message.msg_hdr, (long)flags);
		if (result >= 0)
			note(" flags %x", message.msg_hdr.msg_flags & ~MSG_CMSG_CLOEXEC);
		return result;
	}
	if (!strcmp(call, "recvmmsg")) {
		result = BY(way, recvmmsg(fd, &message, 1, flags, NULL), SYS_recvmmsg, fd, &message,
			    1L, (long)flags, NULL);
		return result > 0 ? message.msg_len : result;
	}
	return BY(way, recv(fd, bytes, length, flags), SYS_recvfrom, fd, bytes, length, (long)flags,
		  NULL, NULL);
}

static void receive(const struct step *step)
{
	struct var *var = var_at(step, 0);
	int flags = flags_of(step), error;
	long length = clamp(number_of(step, "n", 100)), result;

	if (way_of(step) == AIO || way_of(step) >= LIST || is(step, "call", "read") || is(step, "call", "readv") ||
	    is(step, "call", "preadv2") || is(step, "call", "__read"))
		flags = 0;
	memset(buffer, '~', length);
	errno = 0;
	result = receive_by(step, var->fd, buffer, length, flags);
	error = errno;
	if (flags & MSG_OOB) {
		note(" urgent %c", result > 0 ? buffer[0] : ' ');
	} else if (flags & MSG_ERRQUEUE) {
		note(" errors");
	} else if (result > 0 && flags & MSG_TRUNC && var->kind == TCP) {
		/* MSG_TRUNC has discarded the bytes. */
		if (!(flags & MSG_PEEK))
			world->conns[var->in].way[var->in_way].received += (uint64_t)result;
	} else {
		check_received(var, buffer, result > length ? length : result, flags & MSG_PEEK);
	}
	errno = error;
	note_result(result);
}

/* Receives until the socket is empty, at most `n` bytes. */
static void drain(const struct step *step)
{
	struct var *var = var_at(step, 0);
	long most = number_of(step, "n", 1L << 40), total = 0, got;

	do {
		long length = clamp(most - total);

		got = recv(var->fd, buffer, length, MSG_DONTWAIT);
		if (got <= 0 || !check_received(var, buffer, got, false))
			break;
		total += got;
	} while (total < most);
	if (!number_of(step, "loose", 0))
		note(" %s", total == 0 ? "nothing" : "bytes");
	if (var->in >= 0 && total < most) {
		const struct direction *way = &world->conns[var->in].way[var->in_way];

		note(" %ld missing", (long)(way->sent - way->received));
	}
	if (total >= most)
		note(" = enough");
	else
		note_result(got);
}

/* Sends until there is no more room, at most `n` bytes. */
static void do_fill(const struct step *step)
{
	struct var *var = var_at(step, 0);
	long most = number_of(step, "n", 64L << 20), total = 0, sent;

	do {
		long length = clamp(most - total > 65536 ? 65536 : most - total);

		begin_send(var, buffer, length);
		sent = send(var->fd, buffer, length, MSG_DONTWAIT | MSG_NOSIGNAL);
		end_send(var, sent);
		total += sent > 0 ? sent : 0;
	} while (sent > 0 && total < most);
	note_filled(var);
	if (sent > 0)
		note(" = enough");
	else
		note_result(sent);
}

void one_at_a_time(const struct step *step, operation *run)
{
	struct var before = *var_at(step, 0);

	if (!begin_receive(&before))
		return;
	run(step);
	end_receive(&before);
}

static void do_recv(const struct step *step)
{
	one_at_a_time(step, receive);
}

static void do_drain(const struct step *step)
{
	one_at_a_time(step, drain);
}

const struct named transfers[] = {
	{ "send", do_send },	 { "recv", do_recv },	{ "drain", do_drain }, { "fill", do_fill },
	{ NULL, NULL },
};
