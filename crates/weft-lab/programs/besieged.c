/*
 * A server that strangers besiege.
 *
 *   besieged PORT
 *
 * It accepts every request and lets go of what ends, for ever, as a sound server does: a peer that
 * leaves is no reason to stop. With the first it says which queue pair it has besides, which waits
 * for a peer by number.
 */
#include "lab.h"

enum { CQ_DEPTH = 65536 };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[4096];

static struct ibv_qp_init_attr attributes(void)
{
	return (struct ibv_qp_init_attr){
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 4, 4, 1, 1, 0 },
	};
}

/* The objects that all connections share, made with the first; and a queue pair besides. */
static void share(struct ibv_context *device)
{
	struct ibv_qp_init_attr wanted;
	struct ibv_qp *qp;

	if (pd)
		return;
	pd = check_pointer(ibv_alloc_pd(device), "ibv_alloc_pd");
	cq = check_pointer(ibv_create_cq(device, CQ_DEPTH, NULL, NULL, 0), "ibv_create_cq");
	mr = check_pointer(ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE),
			   "ibv_reg_mr");
	wanted = attributes();
	qp = check_pointer(ibv_create_qp(pd, &wanted), "ibv_create_qp");
	printf("queue pair: %u\n", qp->qp_num);
	fflush(stdout);
}

/* Returns whether the peer is still there to be accepted. */
static bool accept_request(struct rdma_cm_id *id)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct ibv_qp_init_attr wanted;
	struct ibv_sge sge;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;

	share(id->verbs);
	wanted = attributes();
	sge = (struct ibv_sge){ (uintptr_t)buffer, sizeof buffer, mr->lkey };
	check(rdma_create_qp(id, pd, &wanted), "rdma_create_qp");
	check(ibv_post_recv(id->qp, &receive, &bad), "ibv_post_recv");
	return !rdma_accept(id, &parameters);
}

static void destroy(struct rdma_cm_id *id)
{
	struct ibv_wc completions[64];

	rdma_destroy_qp(id);
	check(rdma_destroy_id(id), "rdma_destroy_id");
	while (ibv_poll_cq(cq, 64, completions) > 0)
		;
}

int main(int argc, char **argv)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");

	if (argc != 2)
		die("usage: see the source");
	listen_on(channel, argv[1]);
	for (;;) {
		struct lab_event event = take_event(channel);

		if (event.kind == RDMA_CM_EVENT_CONNECT_REQUEST && !accept_request(event.id)) {
			destroy(event.id);
		} else if (event.kind == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(event.id);
			destroy(event.id);
		}
	}
}
