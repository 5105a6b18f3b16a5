/* Socket options, ioctl, and other properties of a socket. */
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "calls.h"

/* Runs `work` and notes whether it took about `expected` milliseconds. */
static void timed(struct end *end, const struct arguments *args, job work, long expected)
{
	long began = now_ms(), took;

	work(end, args);
	took = now_ms() - began;
	note(end, took < expected - 10	   ? ", too soon"
		  : took > expected + 60000 ? ", too late"
					   : ", in time");
}

static void do_recv_timed(struct end *end, const struct arguments *args)
{
	timed(end, args, do_recv, args->value);
}

static void do_read_timed(struct end *end, const struct arguments *args)
{
	timed(end, args, do_read, args->value);
}

static void do_recvmsg_timed(struct end *end, const struct arguments *args)
{
	timed(end, args, do_recvmsg, args->value);
}

static void do_recvmmsg_timed(struct end *end, const struct arguments *args)
{
	timed(end, args, do_recvmmsg, args->value);
}

static void do_send_timed(struct end *end, const struct arguments *args)
{
	timed(end, args, do_send, args->value);
}

CASE(option_receive_timeout)
{
	ON(pair->b, do_timeout, .name = SO_RCVTIMEO, .value = 120);
	ON(pair->b, do_recv_timed, .size = 10, .value = 120);
	ON(pair->b, do_read_timed, .size = 10, .value = 120);
	ON(pair->b, do_recvmsg_timed, .size = 10, .value = 120);
	ON(pair->b, do_recvmmsg_timed, .size = 10, .value = 120);
	ON(pair->b, do_recv_timed, .size = 10, .value = 120, .flags = MSG_PEEK);
	ON(pair->b, do_recv_timed, .size = 10, .value = 0, .flags = MSG_DONTWAIT);
	ON(pair->a, do_send, .text = "part");
	ON(pair->b, do_recv_timed, .size = 10, .value = 120, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "whole");
	ON(pair->b, do_recv_timed, .size = 10, .value = 0);
	ON(pair->b, do_timeout, .name = SO_RCVTIMEO, .value = 0);
	BEGIN(pair->b, do_recv, .size = 10);
	sleep_ms(150);
	ON(pair->a, do_send, .text = "late");
	finish(pair->b);
	exchange(pair, 1);
}

CASE(option_send_timeout)
{
	ON(pair->a, do_timeout, .name = SO_SNDTIMEO, .value = 120);
	ON(pair->a, do_send_timed, .text = "fits", .value = 0);
	ON(pair->a, do_fill);
	ON(pair->a, do_send_timed, .text = "does not fit", .value = 120);
	ON(pair->b, do_recv, .size = 4);
	ON(pair->b, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	ON(pair->a, do_send_timed, .text = "fits again", .value = 0);
	ON(pair->b, do_recv, .size = 100);
}

CASE(option_receive_low_water)
{
	ON(pair->b, do_setsockopt, .level = SOL_SOCKET, .name = SO_RCVLOWAT, .value = 5);
	ON(pair->b, do_getsockopt, .level = SOL_SOCKET, .name = SO_RCVLOWAT);
	ON(pair->a, do_send, .text = "abc");
	ON(pair->b, do_poll, .flags = POLLIN, .value = 20);
	ON(pair->b, do_recv, .size = 2, .flags = MSG_PEEK);
	ON(pair->a, do_send, .text = "def");
	ON(pair->b, do_poll, .flags = POLLIN, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
	BEGIN(pair->b, do_recv, .size = 100);
	ON(pair->a, do_send, .text = "123");
	sleep_ms(5);
	ON(pair->a, do_send, .text = "456");
	finish(pair->b);
	ON(pair->b, do_setsockopt, .level = SOL_SOCKET, .name = SO_RCVLOWAT, .value = 1);
	ON(pair->a, do_send, .text = "x");
	ON(pair->b, do_poll, .flags = POLLIN, .value = 1000);
	ON(pair->b, do_recv, .size = 100);
}

CASE(option_values)
{
	static const struct {
		int level, name, value;
	} OPTIONS[] = {
		{ SOL_SOCKET, SO_SNDBUF, 50000 },	  { SOL_SOCKET, SO_RCVBUF, 60000 },
		{ SOL_SOCKET, SO_SNDBUF, 1 },		  { SOL_SOCKET, SO_RCVBUF, 1 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },	  { SOL_SOCKET, SO_REUSEADDR, 1 },
		{ SOL_SOCKET, SO_PRIORITY, 3 },		  { SOL_SOCKET, SO_OOBINLINE, 1 },
		{ SOL_SOCKET, SO_TYPE, 1 },		  { SOL_SOCKET, SO_ACCEPTCONN, 1 },
		{ SOL_SOCKET, SO_DOMAIN, 1 },		  { SOL_SOCKET, SO_PROTOCOL, 1 },
		{ SOL_SOCKET, SO_RCVLOWAT, 0 },		  { SOL_SOCKET, SO_SNDLOWAT, 5 },
		{ SOL_SOCKET, SO_BUSY_POLL, 0 },	  { SOL_SOCKET, 9999, 1 },
		{ IPPROTO_TCP, TCP_NODELAY, 1 },	  { IPPROTO_TCP, TCP_NODELAY, 0 },
		{ IPPROTO_TCP, TCP_CORK, 1 },		  { IPPROTO_TCP, TCP_CORK, 0 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 7 },	  { IPPROTO_TCP, TCP_KEEPINTVL, 5 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 3 },	  { IPPROTO_TCP, TCP_USER_TIMEOUT, 4000 },
		{ IPPROTO_TCP, TCP_LINGER2, 3 },	  { IPPROTO_TCP, TCP_SYNCNT, 2 },
		{ IPPROTO_TCP, TCP_NOTSENT_LOWAT, 9999 }, { IPPROTO_TCP, TCP_MAXSEG, 1000 },
		{ IPPROTO_TCP, 9999, 1 },		  { IPPROTO_IP, IP_TOS, 8 },
		{ IPPROTO_IP, IP_TTL, 9 },		  { 77, 1, 1 },
	};

	for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++) {
		ON(pair->a, do_setsockopt, .level = OPTIONS[i].level, .name = OPTIONS[i].name,
		   .value = OPTIONS[i].value);
		ON(pair->a, do_getsockopt, .level = OPTIONS[i].level, .name = OPTIONS[i].name);
	}
	ON(pair->a, do_setsockopt, .level = IPPROTO_TCP, .name = TCP_NODELAY, .size = 2);
	ON(pair->a, do_getsockopt, .level = IPPROTO_TCP, .name = TCP_NODELAY, .size = 2);
	exchange(pair, 2);
	BEGIN(pair->b, do_drain, .size = 500000);
	ON(pair->a, do_send, .size = 500000);
	finish(pair->b);
}

/* Small buffers limit the bytes in flight. */
CASE(option_small_buffers)
{
	ON(pair->a, do_setsockopt, .level = SOL_SOCKET, .name = SO_SNDBUF, .value = 4608);
	ON(pair->b, do_setsockopt, .level = SOL_SOCKET, .name = SO_RCVBUF, .value = 4608);
	BEGIN(pair->b, do_drain, .size = 20000);
	ON(pair->a, do_send, .size = 20000);
	finish(pair->b);
	exchange(pair, 2);
}

CASE(option_cork)
{
	ON(pair->a, do_setsockopt, .level = IPPROTO_TCP, .name = TCP_CORK, .value = 1);
	ON(pair->a, do_send, .text = "one ");
	ON(pair->a, do_send, .text = "two ");
	ON(pair->a, do_send, .text = "three");
	ON(pair->a, do_setsockopt, .level = IPPROTO_TCP, .name = TCP_CORK, .value = 0);
	ON(pair->b, do_recv, .size = 13, .flags = MSG_WAITALL);
	ON(pair->a, do_setsockopt, .level = IPPROTO_TCP, .name = TCP_CORK, .value = 1);
	BEGIN(pair->b, do_recv, .size = 4, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "last");
	finish(pair->b);
	ON(pair->a, do_send, .text = "!");
	ON(pair->a, do_close);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100);
}

CASE(ioctl_amounts)
{
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	ON(pair->a, do_send, .text = "ten bytes.");
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_recv, .size = 3);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	ON(pair->a, do_send, .size = 9000);
	sleep_ms(settle_ms);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_recv, .size = 9007, .flags = MSG_WAITALL);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	sleep_ms(2 * settle_ms);
	ON(pair->a, do_ioctl, .name = SIOCOUTQ);
	ON(pair->a, do_ioctl, .name = SIOCOUTQNSD);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_recv, .size = 10);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_ioctl, .name = 0x9999);
}

CASE(ioctl_nonblocking)
{
	ON(pair->b, do_ioctl, .name = FIONBIO, .value = 1);
	ON(pair->b, do_recv, .size = 10);
	ON(pair->b, do_read, .size = 10);
	ON(pair->a, do_send, .text = "here");
	ON(pair->b, do_recv, .size = 10);
	ON(pair->b, do_ioctl, .name = FIONBIO, .value = 0);
	BEGIN(pair->b, do_recv, .size = 10);
	ON(pair->a, do_send, .text = "awaited");
	finish(pair->b);
}

static void do_signal_driven(struct end *end, const struct arguments *args)
{
	struct sigaction action = { .sa_handler = SIG_IGN };

	/* The kernel sends SIGUSR1 instead of SIGIO, and the handler counts it. */
	check(sigaction(SIGIO, &action, NULL), "sigaction");
	note(end, "F_SETSIG");
	note_result(end, fcntl(args->fd, F_SETSIG, SIGUSR1));
	struct f_owner_ex owner = { F_OWNER_TID, gettid() };
	note(end, " F_SETOWN_EX");
	note_result(end, fcntl(args->fd, F_SETOWN_EX, &owner));
	note(end, " O_ASYNC");
	note_result(end, fcntl(args->fd, F_SETFL, O_ASYNC | O_NONBLOCK));
}

CASE(option_signal_driven)
{
	ON(pair->b, do_signal_driven);
	pair->b->number = 0;
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .text = "ring");
		sleep_ms(settle_ms);
		if (pair->b->remote)
			ON(pair->b, do_wait_for_signal);
	}
}

static void do_names(struct end *end, const struct arguments *args)
{
	struct sockaddr_in own = { 0 }, peer = { 0 };
	socklen_t length = sizeof own;
	const struct end *other = (const struct end *)args->text;
	int result = getsockname(args->fd, (struct sockaddr *)&own, &length);

	note(end, "getsockname");
	note_result(end, result);
	note(end, " of %u family %d", length, own.sin_family);
	result = getpeername(args->fd, (struct sockaddr *)&peer, &length);
	note(end, ", getpeername");
	note_result(end, result);
	if (!result)
		note(end, " of %u family %d, %s", length, peer.sin_family,
		     peer.sin_port == other->port ? "A's" : "not A's");
	end->port = own.sin_port;
	length = 3;
	note(end, ", short");
	note_result(end, getpeername(args->fd, (struct sockaddr *)&peer, &length));
	note(end, " %u", length);
}

#define NAMES()                                           \
	do {                                              \
		ON(pair->a, do_names, .text = (char *)pair->b); \
		ON(pair->b, do_names, .text = (char *)pair->a); \
	} while (0)

CASE(option_names)
{
	NAMES();
	NAMES();
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	NAMES();
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	sleep_ms(settle_ms);
	NAMES();
}

static void do_fstat(struct end *end, const struct arguments *args)
{
	struct stat found;

	note(end, "fstat");
	note_result(end, fstat(args->fd, &found));
	note(end, " socket %d, size %ld, isatty %d", S_ISSOCK(found.st_mode), (long)found.st_size,
	     isatty(args->fd));
	note(end, ", fsync");
	note_result(end, fsync(args->fd));
	note(end, ", ftruncate");
	note_result(end, ftruncate(args->fd, 0));
}

CASE(option_file)
{
	ON(pair->a, do_fstat);
	ON(pair->b, do_fstat);
}

CASE(option_peer_credentials)
{
	struct ucred who = { 0 };
	socklen_t length = sizeof who;

	check(getsockopt(pair->a->fd, SOL_SOCKET, SO_PEERCRED, &who, &length), "SO_PEERCRED");
	say("pid %d uid %d gid %d", who.pid, (int)who.uid, (int)who.gid);
}
