/* Steps that set and get socket options. */
#include "world.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

/* The type of an option's value. */
enum shape { NUMBER, LINGER, TIME, TEXT_VALUE, CREDENTIALS, STATE };

static const struct option {
	const char *name;
	int level, option;
	enum shape shape;
} options[] = {
	{ "nodelay", IPPROTO_TCP, TCP_NODELAY, NUMBER },
	{ "cork", IPPROTO_TCP, TCP_CORK, NUMBER },
	{ "quickack", IPPROTO_TCP, TCP_QUICKACK, NUMBER },
	{ "keepidle", IPPROTO_TCP, TCP_KEEPIDLE, NUMBER },
	{ "keepintvl", IPPROTO_TCP, TCP_KEEPINTVL, NUMBER },
	{ "keepcnt", IPPROTO_TCP, TCP_KEEPCNT, NUMBER },
	{ "syncnt", IPPROTO_TCP, TCP_SYNCNT, NUMBER },
	{ "linger2", IPPROTO_TCP, TCP_LINGER2, NUMBER },
	{ "deferaccept", IPPROTO_TCP, TCP_DEFER_ACCEPT, NUMBER },
	{ "usertimeout", IPPROTO_TCP, TCP_USER_TIMEOUT, NUMBER },
	{ "congestion", IPPROTO_TCP, TCP_CONGESTION, TEXT_VALUE },
	{ "notsentlowat", IPPROTO_TCP, TCP_NOTSENT_LOWAT, NUMBER },
	{ "inq", IPPROTO_TCP, TCP_INQ, NUMBER },
	{ "info", IPPROTO_TCP, TCP_INFO, STATE },
	{ "ulp", IPPROTO_TCP, TCP_ULP, TEXT_VALUE },
	{ "keepalive", SOL_SOCKET, SO_KEEPALIVE, NUMBER },
	{ "oobinline", SOL_SOCKET, SO_OOBINLINE, NUMBER },
	{ "lowat", SOL_SOCKET, SO_RCVLOWAT, NUMBER },
	{ "sndlowat", SOL_SOCKET, SO_SNDLOWAT, NUMBER },
	{ "peekoff", SOL_SOCKET, SO_PEEK_OFF, NUMBER },
	{ "busypoll", SOL_SOCKET, SO_BUSY_POLL, NUMBER },
	{ "reuseaddr", SOL_SOCKET, SO_REUSEADDR, NUMBER },
	{ "reuseport", SOL_SOCKET, SO_REUSEPORT, NUMBER },
	{ "broadcast", SOL_SOCKET, SO_BROADCAST, NUMBER },
	{ "dontroute", SOL_SOCKET, SO_DONTROUTE, NUMBER },
	{ "priority", SOL_SOCKET, SO_PRIORITY, NUMBER },
	{ "timestamp", SOL_SOCKET, SO_TIMESTAMP, NUMBER },
	{ "passcred", SOL_SOCKET, SO_PASSCRED, NUMBER },
	{ "peercred", SOL_SOCKET, SO_PEERCRED, CREDENTIALS },
	{ "zerocopy", SOL_SOCKET, SO_ZEROCOPY, NUMBER },
	{ "rcvbuf", SOL_SOCKET, SO_RCVBUF, NUMBER },
	{ "sndbuf", SOL_SOCKET, SO_SNDBUF, NUMBER },
	{ "type", SOL_SOCKET, SO_TYPE, NUMBER },
	{ "protocol", SOL_SOCKET, SO_PROTOCOL, NUMBER },
	{ "domain", SOL_SOCKET, SO_DOMAIN, NUMBER },
	{ "acceptconn", SOL_SOCKET, SO_ACCEPTCONN, NUMBER },
	{ "error", SOL_SOCKET, SO_ERROR, NUMBER },
	{ "nofcs", SOL_SOCKET, SO_NOFCS, NUMBER },
	{ "linger", SOL_SOCKET, SO_LINGER, LINGER },
	{ "rcvtimeo", SOL_SOCKET, SO_RCVTIMEO, TIME },
	{ "sndtimeo", SOL_SOCKET, SO_SNDTIMEO, TIME },
	{ "tos", IPPROTO_IP, IP_TOS, NUMBER },
	{ "ttl", IPPROTO_IP, IP_TTL, NUMBER },
	{ "recverr", IPPROTO_IP, IP_RECVERR, NUMBER },
	{ "pktinfo", IPPROTO_IP, IP_PKTINFO, NUMBER },
	{ "recvttl", IPPROTO_IP, IP_RECVTTL, NUMBER },
	{ "freebind", IPPROTO_IP, IP_FREEBIND, NUMBER },
	{ "v6only", IPPROTO_IPV6, IPV6_V6ONLY, NUMBER },
};

union value {
	int number;
	struct linger linger;
	struct timeval time;
	struct ucred credentials;
	char text[16];
	struct tcp_info info;
};

static const struct option *option_of(const struct step *step)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		if (is(step, "name", options[i].name))
			return &options[i];
	return NULL;
}

/* option V name=NAME value=N size=BYTES */
static void do_option(const struct step *step)
{
	int fd = var_at(step, 0)->fd, number = (int)number_of(step, "value", 1);
	const struct option *option = option_of(step);
	union value value = { .number = number };
	socklen_t size = sizeof number;

	if (!option) {
		note(" = no such option");
		return;
	}
	switch (option->shape) {
	case LINGER:
		value.linger = (struct linger){ number >= 0, number < 0 ? 0 : number / 100 };
		size = sizeof value.linger;
		break;
	case TIME:
		value.time = (struct timeval){ number / 1000, number % 1000 * 1000 };
		size = sizeof value.time;
		break;
	case TEXT_VALUE:
		snprintf(value.text, sizeof value.text, "%s", number > 1 ? "reno" : "nothing");
		size = (socklen_t)strlen(value.text);
		break;
	default:
		break;
	}
	size = (socklen_t)number_of(step, "size", size);
	note_result(BY(way_of(step), setsockopt(fd, option->level, option->option, &value, size),
		       SYS_setsockopt, fd, (long)option->level, (long)option->option, &value,
		       (long)size));
}

/* getoption V name=NAME size=BYTES */
static void do_getoption(const struct step *step)
{
	int fd = var_at(step, 0)->fd;
	const struct option *option = option_of(step);
	union value value;
	socklen_t size = (socklen_t)number_of(step, "size", sizeof value);
	long result;

	if (!option || size > sizeof value) {
		note(" = no such option");
		return;
	}
	memset(&value, 0, sizeof value);
	result = BY(way_of(step), getsockopt(fd, option->level, option->option, &value, &size),
		    SYS_getsockopt, fd, (long)option->level, (long)option->option, &value, &size);
	if (result < 0) {
		note_result(result);
		return;
	}
	switch (option->shape) {
	case LINGER:
		note(" on %d for %d", value.linger.l_onoff, value.linger.l_linger);
		break;
	case TIME:
		note(" %ld.%06ld", (long)value.time.tv_sec, (long)value.time.tv_usec);
		break;
	case TEXT_VALUE:
		note(" '%.16s'", value.text);
		break;
	case CREDENTIALS:
		note(" user %d", (int)value.credentials.uid);
		break;
	case STATE:
		note(" state %d", value.info.tcpi_state);
		break;
	default:
		note(" %d", value.number);
	}
	/* Newer kernels return a longer structure. */
	if (option->shape != STATE)
		note(" size %u", size);
	note_result(result);
}

const struct named of_options[] = {
	{ "option", do_option },
	{ "getoption", do_getoption },
	{ NULL, NULL },
};
