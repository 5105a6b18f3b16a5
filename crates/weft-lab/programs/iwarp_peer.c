/* A pair of rdma_cm programs that exchange known private data and check the other side's.
 *
 *   iwarp_peer PORT LENGTH MODE            a server that answers with LENGTH bytes
 *   iwarp_peer ADDRESS PORT LENGTH MODE    a client that asks with LENGTH bytes
 *
 * MODE of a server: accept or reject. MODE of a client: hello, or badkey, which writes with a key
 * that the server has not given to it.
 */
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                    \
	do {                                                                           \
		if (!(call)) {                                                         \
			perror(#call);                                                 \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

static struct rdma_event_channel *channel;
static unsigned char data[256], bytes[64];

static struct rdma_conn_param param(int length)
{
	struct rdma_conn_param param = {
		.private_data = data,
		.private_data_len = length,
		.responder_resources = 1,
		.initiator_depth = 1,
	};

	return param;
}

static struct rdma_cm_event *next(void)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	printf("%s %d\n", rdma_event_str(event->event), event->status);
	return event;
}

static struct rdma_cm_event *expect(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event = next();

	CHECK(event->event == kind);
	return event;
}

/* Prints the length of the peer's private data, and whether the bytes are as expected. */
static void show(const struct rdma_cm_event *event)
{
	int length = event->param.conn.private_data_len;
	const char *state = "right";

	if (length && memcmp(event->param.conn.private_data, data, length) != 0)
		state = "wrong";
	printf("private data: %d bytes, %s\n", length, state);
}

static struct ibv_mr *mr;

static void prepare(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(mr = ibv_reg_mr(id->pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE));
}

static struct ibv_sge sge(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = sizeof(bytes), .lkey = mr->lkey };

	return sge;
}

static void wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) == 0)
		sched_yield();
	CHECK(wc.status == IBV_WC_SUCCESS);
}

/* Sends the server's message, the first of the connection. When the client has received it, both
 * sides are connected. */
static void send_message(struct rdma_cm_id *id)
{
	struct ibv_sge all = sge();
	struct ibv_send_wr *bad, wr = { .sg_list = &all, .num_sge = 1, .opcode = IBV_WR_SEND };

	/* The client reports its arrival. It may disconnect before this send completes. */
	CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
}

static void post_receive(struct rdma_cm_id *id)
{
	struct ibv_sge all = sge();
	struct ibv_recv_wr *bad, wr = { .sg_list = &all, .num_sge = 1 };

	CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
}

static void write_to_nowhere(struct rdma_cm_id *id)
{
	struct ibv_sge all = sge();
	struct ibv_send_wr *bad, wr = {
		.sg_list = &all,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = 4096, .rkey = 0x7eadbeef },
	};

	CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
}

static int serve(int port, int length, const char *mode)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_conn_param answer = param(length);
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;

	CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	CHECK(rdma_listen(listener, 1) == 0);
	event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	show(event);
	id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	if (strcmp(mode, "reject") == 0) {
		CHECK(rdma_reject(id, data, length) == 0);
		return 0;
	}
	prepare(id);
	CHECK(rdma_accept(id, &answer) == 0);
	CHECK(rdma_ack_cm_event(expect(RDMA_CM_EVENT_ESTABLISHED)) == 0);
	send_message(id);
	CHECK(rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED)) == 0);
	return rdma_disconnect(id) ? 1 : 0;
}

static int ask(const char *host, const char *port, int length, const char *mode)
{
	struct rdma_conn_param request = param(length);
	struct rdma_cm_event *event;
	struct addrinfo *address;
	struct rdma_cm_id *id;

	CHECK(getaddrinfo(host, port, NULL, &address) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, address->ai_addr, 2000) == 0);
	CHECK(rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0);
	prepare(id);
	post_receive(id);
	CHECK(rdma_connect(id, &request) == 0);
	event = next();
	show(event);
	if (event->event != RDMA_CM_EVENT_ESTABLISHED)
		return 0;
	CHECK(rdma_ack_cm_event(event) == 0);
	wait_for(id->recv_cq);
	if (strcmp(mode, "badkey") == 0)
		write_to_nowhere(id);
	else
		CHECK(rdma_disconnect(id) == 0);
	return rdma_ack_cm_event(expect(RDMA_CM_EVENT_DISCONNECTED)) ? 1 : 0;
}

int main(int argc, char **argv)
{
	unsigned int i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (i = 0; i < sizeof(data); i++)
		data[i] = i * 7 + 1;
	CHECK(channel = rdma_create_event_channel());
	if (argc == 4)
		return serve(atoi(argv[1]), atoi(argv[2]), argv[3]);
	if (argc == 5)
		return ask(argv[1], argv[2], atoi(argv[3]), argv[4]);
	fprintf(stderr, "see the comment in the source\n");
	return 2;
}
