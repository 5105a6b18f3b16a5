/*
 * A flow of operations of one kind, until the connection breaks or COUNT operations are done.
 *
 *   flow serve PORT CONNECTIONS            serves that many connections, one after the other
 *   flow connect HOST PORT KIND COUNT      does COUNT operations (0: until the connection breaks)
 *
 * KIND: send send_imm write write_imm read fetch_add cmp_swap.
 *
 * Each side prints "flowing" once the first thousand operations are done, and "done" after an
 * orderly end. When the connection breaks, a side prints what the verbs must report:
 *
 *   broken: STATUS             the first completion that is not a success
 *   outstanding: N flushed: N  requests posted and not yet completed then, and completed since
 *   event: NAME                the connection manager's event
 *   state: N                   the state of the queue pair (6 is IBV_QPS_ERR)
 *
 * and exits with status 0. If one of them is missing it hangs, which the lab reports as a failure.
 *
 * Receives alone do not notice the end of the peer. The connection manager reports it, and the
 * program then calls rdma_disconnect, which flushes the receives.
 */
#include <poll.h>
#include <sys/prctl.h>

#include "lab.h"

enum { DEPTH = 16, MESSAGE_BYTES = 4096, FLOWING_AFTER = 1000, POLLS_BETWEEN_EVENTS = 1000 };

/* Memory in which a server's peer may write, read and do atomics, sent as private data in network
 * byte order. */
struct offer {
	uint64_t address;
	uint32_t key;
} __attribute__((packed));

struct kind {
	const char *name;
	enum ibv_wr_opcode opcode;
};

static const struct kind KINDS[] = {
	{ "send", IBV_WR_SEND },
	{ "send_imm", IBV_WR_SEND_WITH_IMM },
	{ "write", IBV_WR_RDMA_WRITE },
	{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "read", IBV_WR_RDMA_READ },
	{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
};

static const int ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

struct side {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *memory; /* DEPTH messages */
	int outstanding;
	bool disconnected; /* The program has had the event. */
};

static void equip(struct side *side)
{
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, DEPTH, 1, 1, 0 },
		.sq_sig_all = 1,
	};
	struct ibv_context *device = side->id->verbs;

	side->memory = check_pointer(aligned_alloc(4096, DEPTH * MESSAGE_BYTES), "aligned_alloc");
	memset(side->memory, 0, DEPTH * MESSAGE_BYTES);
	side->pd = check_pointer(ibv_alloc_pd(device), "ibv_alloc_pd");
	side->cq = check_pointer(ibv_create_cq(device, 2 * DEPTH, NULL, NULL, 0), "ibv_create_cq");
	side->mr = check_pointer(
		ibv_reg_mr(side->pd, side->memory, DEPTH * MESSAGE_BYTES, ALL_ACCESS),
		"ibv_reg_mr");
	attributes.send_cq = attributes.recv_cq = side->cq;
	check(rdma_create_qp(side->id, side->pd, &attributes), "rdma_create_qp");
}

static void post_receive(struct side *side, uint64_t slot)
{
	struct ibv_sge sge = { (uintptr_t)side->memory + slot * MESSAGE_BYTES, MESSAGE_BYTES,
			       side->mr->lkey };
	struct ibv_recv_wr request = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	check(ibv_post_recv(side->id->qp, &request, &bad), "ibv_post_recv");
	side->outstanding++;
}

static void post_operation(struct side *side, const struct kind *kind, struct offer peer,
			   uint64_t slot)
{
	bool atomic = kind->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
		      kind->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
	struct ibv_sge sge = { (uintptr_t)side->memory + slot * MESSAGE_BYTES,
			       atomic ? 8 : MESSAGE_BYTES, side->mr->lkey };
	struct ibv_send_wr request = { .wr_id = slot, .sg_list = &sge, .num_sge = 1,
				       .opcode = kind->opcode, .imm_data = htobe32(slot) };
	struct ibv_send_wr *bad;

	if (atomic) {
		request.wr.atomic.remote_addr = peer.address;
		request.wr.atomic.rkey = peer.key;
		request.wr.atomic.compare_add = 1;
		request.wr.atomic.swap = 1;
	} else {
		request.wr.rdma.remote_addr = peer.address + slot * MESSAGE_BYTES;
		request.wr.rdma.rkey = peer.key;
	}
	check(ibv_post_send(side->id->qp, &request, &bad), "ibv_post_send");
	side->outstanding++;
}

static void await_disconnected(struct side *side)
{
	expect_event(side->channel, RDMA_CM_EVENT_DISCONNECTED);
	side->disconnected = true;
}

/* Takes the event of the connection's end, if there is one, and disconnects to flush receives. */
static void look_for_disconnected(struct side *side)
{
	struct pollfd channel = { .fd = side->channel->fd, .events = POLLIN };

	if (side->disconnected || poll(&channel, 1, 0) != 1)
		return;
	await_disconnected(side);
	check(rdma_disconnect(side->id), "rdma_disconnect");
}

/* Spins until there is a completion. */
static struct ibv_wc next_completion(struct side *side)
{
	struct ibv_wc completion;
	long polls = 0;
	int count;

	while (!(count = ibv_poll_cq(side->cq, 1, &completion)))
		if (++polls % POLLS_BETWEEN_EVENTS == 0)
			look_for_disconnected(side);
	if (count < 0)
		die("ibv_poll_cq failed");
	side->outstanding--;
	return completion;
}

static void tell_flowing(long done)
{
	if (done == FLOWING_AFTER) {
		puts("flowing");
		fflush(stdout);
	}
}

/* Prints what follows the first failed completion of a broken connection. */
static void break_up(struct side *side, struct ibv_wc first)
{
	struct ibv_qp_init_attr initial;
	struct ibv_qp_attr attributes;
	int outstanding = side->outstanding, flushed = 0;

	printf("broken: %s\n", ibv_wc_status_str(first.status));
	for (; side->outstanding; flushed++) {
		struct ibv_wc completion = next_completion(side);

		if (completion.status == IBV_WC_SUCCESS)
			die("DEFECT: request %lu succeeds after one that failed",
			    (unsigned long)completion.wr_id);
	}
	printf("outstanding: %d flushed: %d\n", outstanding, flushed);
	if (!side->disconnected)
		await_disconnected(side);
	printf("event: %s\n", rdma_event_str(RDMA_CM_EVENT_DISCONNECTED));
	check(ibv_query_qp(side->id->qp, &attributes, IBV_QP_STATE, &initial), "ibv_query_qp");
	printf("state: %d\n", attributes.qp_state);
	fflush(stdout);
}

static void tear_down(struct side *side)
{
	rdma_destroy_qp(side->id);
	check(ibv_dereg_mr(side->mr), "ibv_dereg_mr");
	check(ibv_destroy_cq(side->cq), "ibv_destroy_cq");
	check(ibv_dealloc_pd(side->pd), "ibv_dealloc_pd");
	check(rdma_destroy_id(side->id), "rdma_destroy_id");
	free(side->memory);
}

/* Serves one connection: receives messages, and is the target of the other operations. */
static void answer(struct side *side)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct offer offer;
	long done = 0;

	side->id = expect_event(side->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	equip(side);
	offer = (struct offer){ htobe64((uintptr_t)side->memory), htobe32(side->mr->rkey) };
	parameters.private_data = &offer;
	parameters.private_data_len = sizeof offer;
	for (int slot = 0; slot < DEPTH; slot++)
		post_receive(side, slot);
	check(rdma_accept(side->id, &parameters), "rdma_accept");
	expect_event(side->channel, RDMA_CM_EVENT_ESTABLISHED);
	puts("connected");
	fflush(stdout);
	for (;;) {
		struct ibv_wc completion = next_completion(side);

		if (completion.status != IBV_WC_SUCCESS) {
			break_up(side, completion);
			break;
		}
		post_receive(side, completion.wr_id);
		tell_flowing(++done);
	}
	rdma_disconnect(side->id);
	tear_down(side);
	side->outstanding = 0;
	side->disconnected = false;
}

static void serve(const char *port, int connections)
{
	struct side side = { .channel = check_pointer(rdma_create_event_channel(),
						      "rdma_create_event_channel") };
	struct rdma_cm_id *listener = listen_on(side.channel, port);

	while (connections--)
		answer(&side);
	check(rdma_destroy_id(listener), "rdma_destroy_id");
	rdma_destroy_event_channel(side.channel);
	puts("done");
}

static struct offer connect_to(struct side *side, const char *host, const char *port)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_cm_event *event;
	struct offer offer;

	side->channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	side->id = route_to(side->channel, host, port);
	equip(side);
	check(rdma_connect(side->id, &parameters), "rdma_connect");
	check(rdma_get_cm_event(side->channel, &event), "rdma_get_cm_event");
	if (event->event != RDMA_CM_EVENT_ESTABLISHED)
		die("event %s (status %d)", rdma_event_str(event->event), event->status);
	if (event->param.conn.private_data_len < sizeof offer)
		die("%d bytes of private data", event->param.conn.private_data_len);
	memcpy(&offer, event->param.conn.private_data, sizeof offer);
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return (struct offer){ be64toh(offer.address), be32toh(offer.key) };
}

static void drive(const char *host, const char *port, const struct kind *kind, long count)
{
	struct side side = { 0 };
	struct offer peer = connect_to(&side, host, port);
	long posted = 0, done = 0;

	while (!count || done < count) {
		struct ibv_wc completion;

		while (side.outstanding < DEPTH && (!count || posted < count)) {
			post_operation(&side, kind, peer, posted % DEPTH);
			posted++;
		}
		completion = next_completion(&side);
		if (completion.status != IBV_WC_SUCCESS) {
			break_up(&side, completion);
			tear_down(&side);
			return;
		}
		tell_flowing(++done);
	}
	check(rdma_disconnect(side.id), "rdma_disconnect");
	expect_event(side.channel, RDMA_CM_EVENT_DISCONNECTED);
	tear_down(&side);
	rdma_destroy_event_channel(side.channel);
	puts("done");
}

static const struct kind *kind_named(const char *name)
{
	for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
		if (!strcmp(KINDS[i].name, name))
			return &KINDS[i];
	die("no such kind of operation: %s", name);
}

int main(int argc, char **argv)
{
	/* No other process may access this process's memory. */
	if (getenv("LAB_UNDUMPABLE"))
		check(prctl(PR_SET_DUMPABLE, 0), "prctl");
	if (argc == 4 && !strcmp(argv[1], "serve"))
		serve(argv[2], atoi(argv[3]));
	else if (argc == 6 && !strcmp(argv[1], "connect"))
		drive(argv[2], argv[3], kind_named(argv[4]), atol(argv[5]));
	else
		die("usage: see the head of flow.c");
	return 0;
}
