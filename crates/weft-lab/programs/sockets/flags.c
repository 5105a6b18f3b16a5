/* MSG_PEEK, MSG_WAITALL, MSG_TRUNC and the other flags of send and receive. */
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <linux/errqueue.h>

#include "calls.h"

CASE(flags_peek)
{
	ON(pair->b, do_recv, .size = 10, .flags = MSG_PEEK | MSG_DONTWAIT);
	ON(pair->a, do_send, .text = "abcdef");
	ON(pair->b, do_recv, .size = 3, .flags = MSG_PEEK);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_PEEK);
	ON(pair->b, do_recvmsg, .size = 100, .flags = MSG_PEEK);
	ON(pair->b, do_recvfrom, .size = 5, .flags = MSG_PEEK);
	ON(pair->b, do_ioctl, .name = FIONREAD);
	ON(pair->b, do_recv, .size = 2);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_PEEK);
	ON(pair->a, do_send, .text = "ghi");
	ON(pair->b, do_recv, .size = 100, .flags = MSG_PEEK);
	ON(pair->b, do_recv, .size = 7, .flags = MSG_PEEK | MSG_WAITALL);
	ON(pair->b, do_recv, .size = 100);
	BEGIN(pair->b, do_recv, .size = 100, .flags = MSG_PEEK);
	ON(pair->a, do_send, .text = "waited for");
	finish(pair->b);
	ON(pair->b, do_read, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_PEEK);
	ON(pair->b, do_recv, .size = 100);
}

CASE(flags_peek_large)
{
	ON(pair->a, do_send, .size = 40000);
	sleep_ms(settle_ms);
	ON(pair->b, do_recv, .size = 40000, .flags = MSG_PEEK | MSG_WAITALL);
	ON(pair->b, do_recv, .size = 10000, .flags = MSG_WAITALL);
	ON(pair->b, do_recv, .size = 30000, .flags = MSG_PEEK | MSG_WAITALL);
	ON(pair->b, do_drain, .size = 30000, .value = 10000);
}

CASE(flags_waitall)
{
	BEGIN(pair->b, do_recv, .size = 9, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "one");
	sleep_ms(5);
	ON(pair->a, do_send, .text = "two");
	sleep_ms(5);
	ON(pair->a, do_send, .text = "three");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 100);
	BEGIN(pair->b, do_recvmsg, .size = 6, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "abc");
	sleep_ms(5);
	ON(pair->a, do_send, .text = "defg");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL | MSG_DONTWAIT);
	ON(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL | MSG_DONTWAIT);
	BEGIN(pair->b, do_recv, .size = 500000, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .size = 500000, .value = 9);
	finish(pair->b);
	BEGIN(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "abc");
	sleep_ms(5);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	finish(pair->b);
	ON(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
}

CASE(flags_waitall_interrupted)
{
	BEGIN(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
	interrupt(pair->b);
	BEGIN(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "abc");
	sleep_ms(settle_ms);
	interrupt(pair->b);
	ON(pair->b, do_recv, .size = 6, .flags = MSG_DONTWAIT);
	ON(pair->b, do_timeout, .name = SO_RCVTIMEO, .value = 100);
	ON(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
	BEGIN(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "def");
	finish(pair->b);
	BEGIN(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL | MSG_PEEK);
	ON(pair->a, do_send, .text = "ghi");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 100);
}

CASE(flags_waitall_reset)
{
	BEGIN(pair->b, do_recv, .size = 6, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "abc");
	sleep_ms(settle_ms);
	ON(pair->a, do_linger, .value = 0);
	ON(pair->a, do_close);
	finish(pair->b);
	ON(pair->b, do_recv, .size = 6);
	ON(pair->b, do_recv, .size = 6);
}

CASE(flags_trunc)
{
	ON(pair->a, do_send, .text = "thrown away, kept");
	ON(pair->b, do_recv, .size = 11, .flags = MSG_TRUNC);
	ON(pair->b, do_recv, .size = 2, .flags = MSG_TRUNC | MSG_PEEK);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_TRUNC | MSG_DONTWAIT);
	BEGIN(pair->b, do_recv, .size = 5, .flags = MSG_TRUNC | MSG_WAITALL);
	ON(pair->a, do_send, .text = "waited for");
	finish(pair->b);
	ON(pair->b, do_recvmsg, .size = 100, .flags = MSG_TRUNC);
}

CASE(flags_that_change_nothing)
{
	ON(pair->a, do_send, .text = "record", .flags = MSG_EOR);
	ON(pair->b, do_recvmsg, .size = 100, .flags = MSG_CMSG_CLOEXEC);
	ON(pair->a, do_send, .text = "near", .flags = MSG_DONTROUTE | MSG_CONFIRM);
	ON(pair->b, do_recvmsg, .size = 100, .flags = MSG_NOSIGNAL);
	ON(pair->a, do_send, .text = "copied", .flags = MSG_ZEROCOPY);
	ON(pair->b, do_recvmsg, .size = 3, .flags = 0);
	ON(pair->b, do_recvmsg, .size = 3, .flags = 0);
	ON(pair->b, do_recvmsg, .size = 100, .flags = MSG_ERRQUEUE);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_ERRQUEUE);
}

CASE(flags_more)
{
	ON(pair->a, do_send, .text = "one ", .flags = MSG_MORE);
	ON(pair->a, do_sendmsg, .text = "two ", .flags = MSG_MORE);
	ON(pair->a, do_send, .text = "three");
	ON(pair->b, do_recv, .size = 13, .flags = MSG_WAITALL);
	/* Although no send follows, TCP sends the bytes within 200 ms. */
	BEGIN(pair->b, do_recv, .size = 4, .flags = MSG_WAITALL);
	ON(pair->a, do_send, .text = "last", .flags = MSG_MORE);
	finish(pair->b);
}

CASE(flags_nosignal)
{
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->a, do_send, .text = "x");
	ON(pair->a, do_send, .text = "x", .flags = MSG_NOSIGNAL);
	ON(pair->a, do_sendto, .text = "x");
	ON(pair->a, do_sendto, .text = "x", .flags = MSG_NOSIGNAL);
	ON(pair->a, do_write, .text = "x");
	ON(pair->a, do_writev, .text = "xyz");
	ON(pair->a, do_sendmsg, .text = "xyz");
	ON(pair->a, do_sendmsg, .text = "xyz", .flags = MSG_NOSIGNAL);
	ON(pair->a, do_sendmmsg, .text = "xyz");
	ON(pair->a, do_sendmmsg, .text = "xyz", .flags = MSG_NOSIGNAL);
}

static void do_completion(struct end *end, const struct arguments *args)
{
	char control[200];
	struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
	struct cmsghdr *header;

	note(end, "recvmsg ERRQUEUE");
	note_result(end, recvmsg(args->fd, &message, MSG_ERRQUEUE));
	header = CMSG_FIRSTHDR(&message);
	if (header && header->cmsg_level == SOL_IP && header->cmsg_type == IP_RECVERR) {
		struct sock_extended_err *error = (void *)CMSG_DATA(header);

		note(end, " origin %u from %u to %u", error->ee_origin, error->ee_info,
		     error->ee_data);
	}
}

/* A program that sends with MSG_ZEROCOPY is notified when it may reuse the memory. */
CASE(flags_zerocopy)
{
	ON(pair->a, do_setsockopt, .level = SOL_SOCKET, .name = SO_ZEROCOPY, .value = 1);
	ON(pair->a, do_send, .size = 20000, .flags = MSG_ZEROCOPY);
	ON(pair->b, do_drain, .size = 20000);
	ON(pair->a, do_poll, .flags = 0, .value = 1000);
	ON(pair->a, do_completion);
	ON(pair->a, do_completion);
	exchange(pair, 2);
}
