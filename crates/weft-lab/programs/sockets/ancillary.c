/* Sending and receiving with flags and ancillary data that TCP ignores or refuses. */
#include <linux/net_tstamp.h>
#include <sys/uio.h>

#include "calls.h"

static void do_preadv2(struct end *end, const struct arguments *args)
{
	char bytes[100];
	struct iovec part = { bytes, sizeof bytes };
	ssize_t got = preadv2(args->fd, &part, 1, args->value, args->flags);

	note(end, "preadv2 at %ld %x", args->value, args->flags);
	note_result(end, got);
	note_data(end, bytes, got);
}

static void do_pwritev2(struct end *end, const struct arguments *args)
{
	struct iovec part = { (char *)args->text, strlen(args->text) };

	note(end, "pwritev2 at %ld %x", args->value, args->flags);
	note_result(end, pwritev2(args->fd, &part, 1, args->value, args->flags));
}

CASE(ancillary_offsets)
{
	ON(pair->a, do_pwritev2, .text = "one", .value = -1);
	ON(pair->b, do_preadv2, .value = -1);
	BEGIN(pair->b, do_preadv2, .value = -1, .flags = RWF_HIPRI);
	ON(pair->a, do_pwritev2, .text = "two", .value = -1, .flags = RWF_NOWAIT);
	finish(pair->b);
	ON(pair->b, do_preadv2, .value = -1, .flags = RWF_NOWAIT);
	ON(pair->a, do_pwritev2, .text = "three", .value = 0);
	ON(pair->b, do_preadv2, .value = 5);
	ON(pair->b, do_preadv2, .value = -2);
	exchange(pair, 2);
	ON(pair->a, do_pwritev2, .text = "unknown", .value = -1, .flags = 1 << 20);
	exchange(pair, 2);
}

/* Sends a message with an int as ancillary data of `level` and `name`. `size` is its length. */
static void do_sendmsg_with(struct end *end, const struct arguments *args)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr header;
	} control = { 0 };
	struct iovec part = { (char *)args->text, strlen(args->text) };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof control };

	control.header.cmsg_level = args->level;
	control.header.cmsg_type = args->name;
	control.header.cmsg_len = args->size ? (size_t)args->size : CMSG_LEN(sizeof(int));
	*(int *)CMSG_DATA(&control.header) = args->value;
	note(end, "sendmsg with %d.%d", args->level, args->name);
	note_result(end, sendmsg(args->fd, &message, MSG_NOSIGNAL));
}

CASE(ancillary_ignored)
{
	ON(pair->a, do_sendmsg_with, .text = "rights", .level = SOL_SOCKET, .name = SCM_RIGHTS);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_sendmsg_with, .text = "of IP", .level = IPPROTO_IP, .name = IP_TTL,
	   .value = 3);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

CASE(ancillary_refused)
{
	ON(pair->a, do_sendmsg_with, .text = "unknown", .level = SOL_SOCKET, .name = 12345);
	exchange(pair, 2);
	ON(pair->a, do_sendmsg_with, .text = "malformed", .level = IPPROTO_IP, .size = 3);
	exchange(pair, 2);
}

CASE(ancillary_time_stamps)
{
	ON(pair->a, do_send, .text = "before ");
	ON(pair->a, do_sendmsg_with, .text = "stamped", .level = SOL_SOCKET,
	   .name = SO_TIMESTAMPING, .value = SOF_TIMESTAMPING_TX_SOFTWARE);
	ON(pair->b, do_recv, .size = 14, .flags = MSG_WAITALL);
	exchange(pair, 2);
}
