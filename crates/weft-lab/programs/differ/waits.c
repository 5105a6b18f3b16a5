/* epoll, poll and select. */
#include "world.h"

#include <linux/time_types.h>
#include <sys/epoll.h>
#include <sys/select.h>

static const struct {
	const char *name;
	uint32_t bit;
} BITS[] = {
	{ "in", EPOLLIN },	   { "out", EPOLLOUT },	    { "pri", EPOLLPRI },
	{ "rdhup", EPOLLRDHUP },   { "hup", EPOLLHUP },	    { "err", EPOLLERR },
	{ "et", EPOLLET },	   { "once", EPOLLONESHOT }, { "excl", EPOLLEXCLUSIVE },
	{ "rdnorm", EPOLLRDNORM }, { "wrnorm", EPOLLWRNORM },
};

static uint32_t bits_of(const char *text)
{
	uint32_t bits = 0;
	char copy[100], *rest;

	snprintf(copy, sizeof copy, "%s", text);
	for (char *name = strtok_r(copy, ",", &rest); name; name = strtok_r(NULL, ",", &rest))
		for (size_t i = 0; i < sizeof BITS / sizeof *BITS; i++)
			if (!strcmp(name, BITS[i].name))
				bits |= BITS[i].bit;
	return bits;
}

static void note_bits(uint32_t bits)
{
	const char *comma = "";

	for (size_t i = 0; i < sizeof BITS / sizeof *BITS; i++)
		if (bits & BITS[i].bit) {
			note("%s%s", comma, BITS[i].name);
			comma = ",";
		}
}

/* ctl EPOLL V op=add|mod|del events=in,out,... data=N way=uring|... */
static void do_ctl(const struct step *step)
{
	struct var *epoll = var_at(step, 0), *var = var_at(step, 1);
	struct epoll_event event = { bits_of(text_of(step, "events", "in")),
				     { .u64 = (uint64_t)number_of(step, "data",
								  index_at(step, 1)) } };
	int op = is(step, "op", "del")	 ? EPOLL_CTL_DEL
		 : is(step, "op", "mod") ? EPOLL_CTL_MOD
					 : EPOLL_CTL_ADD;
	enum way way = way_of(step);
	long result;

	/* IORING_OP_EPOLL_CTL: the watched descriptor is in the field of the offset. */
	if (way == URING && uring_do(29, epoll->fd, &event, (unsigned)op, (uint64_t)var->fd, 0,
				     &result)) {
		note_result(result);
		return;
	}
	note_result(BY(way, epoll_ctl(epoll->fd, op, var->fd, &event), SYS_epoll_ctl, epoll->fd,
		       (long)op, var->fd, &event));
}

/* wait EPOLL max=N timeout=MS call=wait|pwait|pwait2 sorted=1 */
static void do_wait(const struct step *step)
{
	struct var *epoll = var_at(step, 0);
	struct epoll_event events[32];
	int max = (int)number_of(step, "max", 16), timeout = (int)number_of(step, "timeout", 0);
	struct timespec limit = { timeout / 1000, timeout % 1000 * 1000000L };
	enum way way = way_of(step);
	long count;

	if (max > 32)
		max = 32;
	if (is(step, "call", "pwait2"))
		count = BY(way, epoll_pwait2(epoll->fd, events, max, timeout < 0 ? NULL : &limit, NULL),
			   SYS_epoll_pwait2, epoll->fd, events, (long)max,
			   timeout < 0 ? NULL : &limit, NULL, 8L);
	else if (is(step, "call", "pwait"))
		count = BY(way, epoll_pwait(epoll->fd, events, max, timeout, NULL), SYS_epoll_pwait,
			   epoll->fd, events, (long)max, (long)timeout, NULL, 8L);
	else
		count = BY(way, epoll_wait(epoll->fd, events, max, timeout), SYS_epoll_wait,
			   epoll->fd, events, (long)max, (long)timeout);
	for (long i = 0; i < count; i++) {
		note(" [%lu ", events[i].data.u64);
		note_bits(events[i].events);
		note("]");
	}
	note_result(count);
}

/* poll v1 v2 ... events=in,out timeout=MS call=poll|ppoll|select|pselect */
static void do_poll(const struct step *step)
{
	struct pollfd polled[WORDS];
	short events = (short)bits_of(text_of(step, "events", "in"));
	int timeout = (int)number_of(step, "timeout", 0), count = 0;
	struct timespec limit = { timeout / 1000, timeout % 1000 * 1000000L };
	struct timeval older = { timeout / 1000, timeout % 1000 * 1000L };
	bool selects = is(step, "call", "select") || is(step, "call", "pselect");
	enum way way = way_of(step);
	fd_set sets[3];
	long result;
	int most = 0;

	for (int i = 0; i < 3; i++)
		FD_ZERO(&sets[i]);
	for (int i = 2; i < step->count; i++) {
		int fd;

		if (step->words[i][0] != 'v' || !strchr("0123456789", step->words[i][1]))
			continue;
		fd = world->vars[atoi(step->words[i] + 1) % VARS].fd;
		polled[count++] = (struct pollfd){ fd, events, 0 };
		if (fd < 0 || fd >= FD_SETSIZE)
			continue;
		if (events & POLLIN)
			FD_SET(fd, &sets[0]);
		if (events & POLLOUT)
			FD_SET(fd, &sets[1]);
		if (events & POLLPRI)
			FD_SET(fd, &sets[2]);
		most = fd >= most ? fd + 1 : most;
	}
	if (is(step, "call", "select"))
		result = BY(way, select(most, &sets[0], &sets[1], &sets[2], timeout < 0 ? NULL : &older),
			    SYS_select, (long)most, &sets[0], &sets[1], &sets[2],
			    timeout < 0 ? NULL : &older);
	else if (is(step, "call", "pselect"))
		result = BY(way,
			    pselect(most, &sets[0], &sets[1], &sets[2], timeout < 0 ? NULL : &limit,
				    NULL),
			    SYS_pselect6, (long)most, &sets[0], &sets[1], &sets[2],
			    timeout < 0 ? NULL : &limit, NULL);
	else if (is(step, "call", "ppoll"))
		result = BY(way, ppoll(polled, count, timeout < 0 ? NULL : &limit, NULL), SYS_ppoll,
			    polled, (long)count, timeout < 0 ? NULL : &limit, NULL, 8L);
	else if (way == SUBMIT && count == 1)
		result = submitted_poll(polled, timeout);
	else if (is(step, "call", "__poll"))
		result = __poll(polled, count, timeout);
	else
		result = BY(way, poll(polled, count, timeout), SYS_poll, polled, (long)count,
			    (long)timeout);
	for (int i = 0; result > 0 && i < count; i++) {
		int fd = polled[i].fd;
		uint32_t bits = (uint16_t)polled[i].revents;

		if (selects && fd >= 0 && fd < FD_SETSIZE)
			bits = (FD_ISSET(fd, &sets[0]) ? POLLIN : 0) |
			       (FD_ISSET(fd, &sets[1]) ? POLLOUT : 0) |
			       (FD_ISSET(fd, &sets[2]) ? POLLPRI : 0);
		note(" [");
		note_bits(bits);
		note("%s]", bits & POLLNVAL ? "nval" : "");
	}
	note_result(result);
}

const struct named waits[] = {
	{ "ctl", do_ctl },   { "wait", do_wait },	{ "poll", do_poll },
	{ NULL, NULL },
};
