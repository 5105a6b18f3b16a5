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

enum { QUEUE_DEPTH = 4 };

static struct lab_objects objects;

/* Makes the objects that all connections share with the first; and a queue pair besides. */
static void share(struct ibv_context *device)
{
	struct ibv_qp_init_attr wanted;
	struct ibv_qp *qp;

	if (objects.pd)
		return;
	make_objects(&objects, device);
	wanted = queue_pair_of(&objects, QUEUE_DEPTH);
	qp = check_pointer(ibv_create_qp(objects.pd, &wanted), "ibv_create_qp");
	printf("queue pair: %u\n", qp->qp_num);
	fflush(stdout);
}

/* Returns whether the peer is still there to be accepted. */
static bool accept_request(struct rdma_cm_id *id)
{
	struct rdma_conn_param parameters = connection_parameters();

	share(id->verbs);
	give_queue_pair(&objects, id, QUEUE_DEPTH);
	return !rdma_accept(id, &parameters);
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
			destroy_with_queue_pair(&objects, event.id);
		} else if (event.kind == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(event.id);
			destroy_with_queue_pair(&objects, event.id);
		}
	}
}
