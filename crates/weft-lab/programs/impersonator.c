/*
 * A process of another user that impersonates an end of a stream.
 *
 *   impersonator listen ADDRESS PORT
 *       answers an acceptor that dials the stream's connector
 *   impersonator dial ADDRESS PORT FROM FROMPORT
 *       dials the connector in the name of its acceptor
 *
 * It knows the stream's addresses, which any user of the host can find out, and has to guess the
 * proof. It prints the events that it gets.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include "lab.h"

/* The hello of a stream's ends: see weft-sockets/src/remote/hello.rs. */
enum { HELLO_BYTES = 112, PROOF_AT = 80, NOBODY = 65534, WAIT_MS = 8000 };

static struct rdma_event_channel *channel;
static unsigned char hello[HELLO_BYTES];

static struct sockaddr_in address_of(const char *text, const char *port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
		die("no address: %s", text);
	return address;
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_pd *pd = check_pointer(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");

	attributes.send_cq = attributes.recv_cq =
		check_pointer(ibv_create_cq(id->verbs, 16, NULL, NULL, 0), "ibv_create_cq");
	check(rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
}

static void put_address(unsigned char *place, const struct sockaddr_in *address)
{
	place[10] = place[11] = 0xff; /* an IPv4-mapped IPv6 address */
	memcpy(place + 12, &address->sin_addr, 4);
	memcpy(place + 16, &address->sin_port, 2);
}

static void make_hello(const struct sockaddr_in *connector, const struct sockaddr_in *acceptor)
{
	static const unsigned char begin[16] = "\xf7WeftSt\x1a\0\0\0\2\0\x10\0"; /* 1 MiB */

	memcpy(hello, begin, sizeof begin);
	put_address(hello + 16, connector);
	put_address(hello + 34, acceptor);
	hello[77] = 16; /* bytes of the stream in each direction */
	hello[79] = 16;
	for (int i = PROOF_AT; i < HELLO_BYTES; i++)
		hello[i] = (unsigned char)rand();
}

/* Returns the name of the next event, or "nothing" after a timeout. */
static const char *next_event(struct rdma_cm_event **event)
{
	struct pollfd set = { channel->fd, POLLIN, 0 };

	if (poll(&set, 1, WAIT_MS) <= 0)
		return "nothing";
	check(rdma_get_cm_event(channel, event), "rdma_get_cm_event");
	return rdma_event_str((*event)->event);
}

static void say(const char *text)
{
	puts(text);
	fflush(stdout);
}

static void answer(const char *own, const char *port)
{
	struct sockaddr_in address = address_of(own, port);
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = HELLO_BYTES };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_bind_addr(id, (struct sockaddr *)&address), "rdma_bind_addr");
	check(rdma_listen(id, 1), "rdma_listen");
	say("listens");
	say(next_event(&event));
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST ||
	    event->param.conn.private_data_len < HELLO_BYTES)
		die("somebody else has dialled");
	/* Sends the acceptor's hello back, with its own proof, as the best guess. */
	memcpy(hello, event->param.conn.private_data, HELLO_BYTES);
	make_queue_pair(event->id);
	check(rdma_accept(event->id, &param), "rdma_accept");
	say(next_event(&event));
	say(next_event(&event));
}

static void dial(char **arguments)
{
	struct sockaddr_in to = address_of(arguments[0], arguments[1]);
	struct sockaddr_in acceptor = address_of(arguments[2], arguments[3]), from = acceptor;
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = HELLO_BYTES };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	from.sin_port = 0;
	make_hello(&to, &acceptor);
	check(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(rdma_resolve_addr(id, (struct sockaddr *)&from, (struct sockaddr *)&to, 2000), "addr");
	next_event(&event);
	check(rdma_resolve_route(id, 2000), "rdma_resolve_route");
	next_event(&event);
	make_queue_pair(id);
	check(rdma_connect(id, &param), "rdma_connect");
	say(next_event(&event));
	if (event->event == RDMA_CM_EVENT_REJECTED)
		say(event->status == 28 ? "it was refused" : "nobody listens");
}

int main(int argc, char **argv)
{
	if (!getuid() && (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
		die("cannot become another user");
	channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	if (argc == 4 && !strcmp(argv[1], "listen"))
		answer(argv[2], argv[3]);
	else if (argc == 6 && !strcmp(argv[1], "dial"))
		dial(argv + 2);
	else
		die("usage: see the source");
	return 0;
}
