/*
 * A server to whose ports foreign peers connect.
 *
 *   foreign_peers PORT
 *
 * It accepts every request, and destroys connections that end, for ever. With the first connection
 * it also creates a queue pair that waits for a peer that knows its number, and prints that number.
 */
#include "lab.h"

enum { QUEUE_DEPTH = 4 };

static struct lab_objects objects;

/* With the first connection, makes the objects that all share, and one more queue pair. */
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

/* Returns whether accepting succeeded: it fails if the peer has left already. */
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
