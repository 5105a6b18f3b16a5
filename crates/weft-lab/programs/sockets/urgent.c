/* MSG_OOB: out of band and in line. */
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include "calls.h"

CASE(urgent_out_of_band)
{
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	ON(pair->a, do_send, .text = "before");
	ON(pair->a, do_send, .text = "!", .flags = MSG_OOB);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "after");
	ON(pair->b, do_poll, .flags = POLLPRI, .value = 1000);
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB | MSG_PEEK);
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	exchange(pair, 3);
	ON(pair->b, do_send, .text = "wow", .flags = MSG_OOB);
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_recv, .size = 1, .flags = MSG_OOB);
	exchange(pair, 2);
}

CASE(urgent_in_line)
{
	ON(pair->b, do_setsockopt, .level = SOL_SOCKET, .name = SO_OOBINLINE, .value = 1);
	ON(pair->a, do_send, .text = "before");
	ON(pair->a, do_send, .text = "!", .flags = MSG_OOB);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "after");
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	ON(pair->b, do_recv, .size = 1);
	ON(pair->b, do_recv, .size = 100);
	exchange(pair, 2);
}

/* The reader sleeps when the urgent byte arrives. A second one follows many ordinary bytes. */
CASE(urgent_wakes_poller)
{
	BEGIN(pair->b, do_poll, .flags = POLLPRI, .value = 3000);
	ON(pair->a, do_send, .text = "!", .flags = MSG_OOB);
	finish(pair->b);
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	exchange(pair, 2);
	ON(pair->a, do_send, .size = 50000);
	ON(pair->a, do_send, .text = "?", .flags = MSG_OOB);
	ON(pair->b, do_poll, .flags = POLLPRI, .value = 3000);
	ON(pair->b, do_drain, .size = 50000);
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	exchange(pair, 2);
}

/* Urgent data ends a receive with MSG_WAITALL that has a part of its bytes. A receive without bytes
 * skips it. */
CASE(urgent_ends_a_part)
{
	BEGIN(pair->b, do_recv, .size = 100, .flags = MSG_WAITALL);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "before");
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "!", .flags = MSG_OOB);
	finish(pair->b);
	ON(pair->b, do_ioctl, .name = SIOCATMARK);
	BEGIN(pair->b, do_recv, .size = 8, .flags = MSG_WAITALL);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "behind");
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "it");
	finish(pair->b);
	ON(pair->a, do_send, .text = "again");
	ON(pair->a, do_send, .text = "?", .flags = MSG_OOB);
	sleep_ms(settle_ms);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_WAITALL);
	ON(pair->b, do_recv, .size = 1, .flags = MSG_OOB);
	exchange(pair, 2);
}
