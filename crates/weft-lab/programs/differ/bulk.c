/* Steps that do many things: what needs a full table, or two processes in the same instant. */
#include "world.h"

#include <netinet/tcp.h>
#include <sys/wait.h>

struct two {
	int connector, acceptor;
};

static bool open_two(struct two *two, int listener, const struct sockaddr_in *address)
{
	int one = 1;

	two->connector = socket(AF_INET, SOCK_STREAM, 0);
	if (two->connector < 0 ||
	    connect(two->connector, (const struct sockaddr *)address, sizeof *address))
		return false;
	two->acceptor = accept(listener, NULL, NULL);
	setsockopt(two->connector, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	setsockopt(two->acceptor, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return two->acceptor >= 0;
}

static int open_listener(struct sockaddr_in *address)
{
	socklen_t length = sizeof *address;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	*address = (struct sockaddr_in){ .sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	if (fd < 0 || bind(fd, (struct sockaddr *)address, sizeof *address) || listen(fd, 64) ||
	    getsockname(fd, (struct sockaddr *)address, &length))
		return -1;
	return fd;
}

/* A message that says which connection and process it belongs to, there and back. */
static bool exchange(struct two *two, int index, int round, uint32_t length)
{
	char sent[600], got[600];

	for (int back = 0; back < 2; back++) {
		int from = back ? two->acceptor : two->connector;
		int to = back ? two->connector : two->acceptor;
		ssize_t received;

		for (uint32_t i = 0; i < length; i++)
			sent[i] = pattern(getpid() % 1000 * 100 + index, back, round * 1000u + i);
		if (send(from, sent, length, MSG_NOSIGNAL) != (ssize_t)length) {
			note(" send of connection %d, round %d", index, round);
			return false;
		}
		received = recv(to, got, length, MSG_WAITALL);
		if (received != (ssize_t)length) {
			note(" connection %d, round %d: %zd", index, round, received);
			return false;
		}
		if (memcmp(sent, got, length)) {
			note(" FOREIGN in connection %d, round %d", index, round);
			return false;
		}
	}
	return true;
}

/* churn n= rounds=: opens connections, exchanges messages over all of them, and closes them. */
static void do_churn(const struct step *step)
{
	struct two open[64];
	struct sockaddr_in address;
	int count = (int)number_of(step, "n", 10), listener = open_listener(&address), opened = 0;
	bool good = true;

	if (count > 64)
		count = 64;
	while (good && opened < count)
		good = open_two(&open[opened++], listener, &address);
	for (int round = 0; good && round < number_of(step, "rounds", 4); round++)
		for (int i = 0; good && i < opened; i++)
			good = exchange(&open[i], i, round, 1 + (uint32_t)(i * 37 + round) % 500);
	for (int i = 0; i < opened; i++) {
		close(open[i].connector);
		close(open[i].acceptor);
	}
	close(listener);
	note(" = %s", good ? "ok" : "bad");
}

/* crowd n=: a child that opens many connections, uses each, and is killed with all of them. */
static void do_crowd(const struct step *step)
{
	int count = (int)number_of(step, "n", 1000), status = 0;
	pid_t child = fork();

	if (!child) {
		struct sockaddr_in address;
		int listener = open_listener(&address);

		for (int i = 0; i < count; i++) {
			struct two two;

			if (!open_two(&two, listener, &address))
				break;
			for (int round = 0; round < 3; round++)
				exchange(&two, i, round, 5);
		}
		kill(getpid(), SIGKILL);
	}
	note(" = %s", child > 0 && waitpid(child, &status, 0) == child ? "ok" : "bad");
}

const struct named bulk[] = {
	{ "churn", do_churn },
	{ "crowd", do_crowd },
	{ NULL, NULL },
};
