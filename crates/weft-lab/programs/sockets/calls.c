#include "calls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

static const struct {
	int flag;
	const char *name;
} FLAGS[] = {
	{ MSG_OOB, "OOB" },         { MSG_PEEK, "PEEK" },         { MSG_TRUNC, "TRUNC" },
	{ MSG_CTRUNC, "CTRUNC" },   { MSG_EOR, "EOR" },           { MSG_WAITALL, "WAITALL" },
	{ MSG_DONTWAIT, "DONTWAIT" }, { MSG_MORE, "MORE" },       { MSG_NOSIGNAL, "NOSIGNAL" },
	{ MSG_ERRQUEUE, "ERRQUEUE" }, { MSG_ZEROCOPY, "ZEROCOPY" }, { MSG_WAITFORONE, "WAITFORONE" },
	{ MSG_CMSG_CLOEXEC, "CMSG_CLOEXEC" }, { MSG_DONTROUTE, "DONTROUTE" },
}, EVENTS[] = {
	{ POLLIN, "IN" },     { POLLPRI, "PRI" },       { POLLOUT, "OUT" },     { POLLERR, "ERR" },
	{ POLLHUP, "HUP" },   { POLLNVAL, "NVAL" },     { POLLRDHUP, "RDHUP" },
	{ POLLRDNORM, "RDNORM" }, { POLLWRNORM, "WRNORM" }, { POLLRDBAND, "RDBAND" },
};

void note_flags(struct end *end, int flags)
{
	for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++)
		if (flags & FLAGS[i].flag)
			note(end, " %s", FLAGS[i].name);
}

void note_events(struct end *end, unsigned events)
{
	for (size_t i = 0; i < sizeof EVENTS / sizeof *EVENTS; i++)
		if (events & EVENTS[i].flag)
			note(end, " %s", EVENTS[i].name);
}

/* Prepares the bytes to send, notes the call, and returns their number. */
static size_t outgoing(struct end *end, const char *call, const struct arguments *args)
{
	size_t size = args->text ? strlen(args->text) : (size_t)args->size;

	if (size > DATA_BYTES)
		die("too much to send");
	if (args->text)
		memcpy(end->data, args->text, size);
	else
		for (size_t i = 0; i < size; i++)
			end->data[i] = pattern(args->value + i);
	note(end, "%s %zu", call, size);
	note_flags(end, args->flags);
	return size;
}

/* Splits data into three parts, the second of which is empty. */
static void split(char *data, size_t size, struct iovec *parts)
{
	parts[0] = (struct iovec){ data, size / 3 };
	parts[1] = (struct iovec){ data, 0 };
	parts[2] = (struct iovec){ data + size / 3, size - size / 3 };
}

void do_send(struct end *end, const struct arguments *args)
{
	size_t size = outgoing(end, "send", args);

	note_result(end, send(args->fd, end->data, size, args->flags));
}

void do_sendto(struct end *end, const struct arguments *args)
{
	size_t size = outgoing(end, "sendto", args);
	struct sockaddr_in other = { .sin_family = AF_INET, .sin_port = htons(9) };

	/* A connected stream socket ignores the address. */
	note_result(end, sendto(args->fd, end->data, size, args->flags,
				(struct sockaddr *)&other, sizeof other));
}

void do_write(struct end *end, const struct arguments *args)
{
	size_t size = outgoing(end, "write", args);

	note_result(end, write(args->fd, end->data, size));
}

void do_writev(struct end *end, const struct arguments *args)
{
	struct iovec parts[3];

	split(end->data, outgoing(end, "writev", args), parts);
	note_result(end, writev(args->fd, parts, 3));
}

void do_sendmsg(struct end *end, const struct arguments *args)
{
	struct iovec parts[3];
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 3 };

	split(end->data, outgoing(end, "sendmsg", args), parts);
	note_result(end, sendmsg(args->fd, &message, args->flags));
}

void do_sendmmsg(struct end *end, const struct arguments *args)
{
	struct iovec parts[3], copy = { end->data, 0 };
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = parts, .msg_iovlen = 3 } },
				       { .msg_hdr = { .msg_iov = &copy, .msg_iovlen = 1 } } };
	size_t size = outgoing(end, "sendmmsg", args);

	split(end->data, size, parts);
	copy.iov_len = size / 2;
	note_result(end, sendmmsg(args->fd, messages, 2, args->flags));
	note(end, " lengths %u %u", messages[0].msg_len, messages[1].msg_len);
}

static size_t incoming(struct end *end, const char *call, const struct arguments *args)
{
	note(end, "%s %ld", call, args->size);
	note_flags(end, args->flags);
	if (args->size > DATA_BYTES)
		die("too much to receive");
	memset(end->data, '.', args->size < 64 ? 64 : args->size);
	return args->size;
}

void do_recv(struct end *end, const struct arguments *args)
{
	size_t size = incoming(end, "recv", args);
	ssize_t got = recv(args->fd, end->data, size, args->flags);

	note_result(end, got);
	note_data(end, end->data, got);
}

void do_recvfrom(struct end *end, const struct arguments *args)
{
	size_t size = incoming(end, "recvfrom", args);
	struct sockaddr_in from = { .sin_port = 7 };
	socklen_t length = sizeof from;
	ssize_t got = recvfrom(args->fd, end->data, size, args->flags, (struct sockaddr *)&from,
			       &length);

	note_result(end, got);
	note_data(end, end->data, got);
	note(end, " address %u %u", length, from.sin_port);
}

void do_read(struct end *end, const struct arguments *args)
{
	size_t size = incoming(end, "read", args);
	ssize_t got = read(args->fd, end->data, size);

	note_result(end, got);
	note_data(end, end->data, got);
}

void do_readv(struct end *end, const struct arguments *args)
{
	struct iovec parts[3];
	ssize_t got;

	split(end->data, incoming(end, "readv", args), parts);
	got = readv(args->fd, parts, 3);
	note_result(end, got);
	note_data(end, end->data, got);
}

void do_recvmsg(struct end *end, const struct arguments *args)
{
	struct iovec parts[3];
	struct sockaddr_in from = { 0 };
	char control[64];
	struct msghdr message = { .msg_iov = parts,
				  .msg_iovlen = 3,
				  .msg_name = &from,
				  .msg_namelen = sizeof from,
				  .msg_control = control,
				  .msg_controllen = sizeof control };
	ssize_t got;

	split(end->data, incoming(end, "recvmsg", args), parts);
	got = recvmsg(args->fd, &message, args->flags);
	note_result(end, got);
	note_data(end, end->data, got);
	if (got >= 0) {
		note(end, " name %u control %zu flags", message.msg_namelen, message.msg_controllen);
		note_flags(end, message.msg_flags);
	}
}

void do_recvmmsg(struct end *end, const struct arguments *args)
{
	struct iovec parts[2];
	struct mmsghdr messages[2] = { { .msg_hdr = { .msg_iov = &parts[0], .msg_iovlen = 1 } },
				       { .msg_hdr = { .msg_iov = &parts[1], .msg_iovlen = 1 } } };
	size_t size = incoming(end, "recvmmsg", args);
	int got;

	parts[0] = (struct iovec){ end->data, size / 2 };
	parts[1] = (struct iovec){ end->data + size / 2, size - size / 2 };
	got = recvmmsg(args->fd, messages, 2, args->flags, NULL);
	note_result(end, got);
	for (int i = 0; i < got; i++)
		note_data(end, parts[i].iov_base, messages[i].msg_len);
}

void do_drain(struct end *end, const struct arguments *args)
{
	long total = 0;
	bool good = true;
	ssize_t got;

	note(end, "drain %ld", args->size);
	while (total < args->size) {
		got = recv(args->fd, end->data, DATA_BYTES, args->flags);
		if (got <= 0) {
			note_result(end, got);
			break;
		}
		for (ssize_t i = 0; i < got; i++)
			good &= end->data[i] == pattern(args->value + total + i);
		total += got;
	}
	if (args->flags & MSG_DONTWAIT)
		note(end, ": %s", good ? "as sent" : "not as sent");
	else
		note(end, ": %ld %s", total, good ? "as sent" : "not as sent");
	end->number = total;
}

void do_fill(struct end *end, const struct arguments *args)
{
	int room = 65536;
	long before;
	ssize_t sent;

	note(end, "fill");
	end->number = 0;
	/* Without a fixed size the kernel sometimes enlarges the buffer. If the peer's kernel
	 * takes bytes late, there is room again, too: hence the outer loop. */
	check(setsockopt(args->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), "SO_SNDBUF");
	do {
		before = end->number;
		do {
			for (int i = 0; i < 5000; i++)
				end->data[i] = pattern(end->number + i);
			sent = send(args->fd, end->data, 5000, MSG_DONTWAIT | MSG_NOSIGNAL);
			end->number += sent > 0 ? sent : 0;
		} while (sent > 0 && end->number < 1 << 28);
		sleep_ms(settle_ms + 20);
	} while (end->number > before);
	note_result(end, sent);
}

void do_shutdown(struct end *end, const struct arguments *args)
{
	static const char *const HOW[] = { "RD", "WR", "RDWR" };

	if (args->flags >= 0 && args->flags < 3)
		note(end, "shutdown %s", HOW[args->flags]);
	else
		note(end, "shutdown %d", args->flags);
	note_result(end, shutdown(args->fd, args->flags));
}

void do_close(struct end *end, const struct arguments *args)
{
	note(end, "close");
	note_result(end, close(args->fd));
}

void do_setsockopt(struct end *end, const struct arguments *args)
{
	int value = args->value;

	note(end, "setsockopt %d/%d %d", args->level, args->name, value);
	note_result(end, setsockopt(args->fd, args->level, args->name, &value,
				    args->size ? args->size : (long)sizeof value));
}

void do_getsockopt(struct end *end, const struct arguments *args)
{
	int value = 0;
	socklen_t length = args->size ? args->size : (long)sizeof value;
	int result = getsockopt(args->fd, args->level, args->name, &value, &length);

	note(end, "getsockopt %d/%d", args->level, args->name);
	note_result(end, result);
	if (!result)
		note(end, " value %d length %u", value, length);
}

void do_so_error(struct end *end, const struct arguments *args)
{
	int error = -1;
	socklen_t length = sizeof error;

	note(end, "SO_ERROR");
	note_result(end, getsockopt(args->fd, SOL_SOCKET, SO_ERROR, &error, &length));
	note(end, " %s", error ? strerrorname_np(error) : "none");
}

void do_linger(struct end *end, const struct arguments *args)
{
	struct linger linger = { 1, args->value };

	note(end, "SO_LINGER %ld", args->value);
	note_result(end, setsockopt(args->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
}

void do_timeout(struct end *end, const struct arguments *args)
{
	struct timeval time = { args->value / 1000, args->value % 1000 * 1000 }, back;
	socklen_t length = sizeof back;

	note(end, "%s", args->name == SO_RCVTIMEO ? "SO_RCVTIMEO" : "SO_SNDTIMEO");
	note_result(end, setsockopt(args->fd, SOL_SOCKET, args->name, &time, sizeof time));
	check(getsockopt(args->fd, SOL_SOCKET, args->name, &back, &length), "getsockopt");
	note(end, " %ld.%06ld", back.tv_sec, back.tv_usec);
}

void do_nonblocking(struct end *end, const struct arguments *args)
{
	int flags = check(fcntl(args->fd, F_GETFL), "F_GETFL");

	flags = args->value ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
	note(end, "nonblocking %ld", args->value);
	note_result(end, fcntl(args->fd, F_SETFL, flags));
}

void do_ioctl(struct end *end, const struct arguments *args)
{
	int value = args->value;
	int result = ioctl(args->fd, args->name, &value);

	note(end, "ioctl %#x", args->name);
	note_result(end, result);
	if (!result)
		note(end, " %d", value);
}

void do_poll(struct end *end, const struct arguments *args)
{
	struct pollfd polled = { .fd = args->fd, .events = args->flags };
	int result = poll(&polled, 1, args->value);

	note(end, "poll");
	note_events(end, args->flags);
	note_result(end, result);
	note_events(end, polled.revents);
}

void do_tcp_state(struct end *end, const struct arguments *args)
{
	struct tcp_info info = { 0 };
	socklen_t length = sizeof info;

	note(end, "TCP_INFO");
	note_result(end, getsockopt(args->fd, IPPROTO_TCP, TCP_INFO, &info, &length));
	note(end, " state %u", info.tcpi_state);
}

void do_wait_for_signal(struct end *end, const struct arguments *args __attribute__((unused)))
{
	for (int i = 0; i < 100 && user_signals == (int)end->number; i++)
		sleep_ms(10);
	note(end, "SIGIO %s", user_signals == (int)end->number ? "missing" : "has come");
	end->number = user_signals;
	note_result(end, recv(end->fd, end->data, 100, 0));
}
