/*
 * An RDMA listener that ends each connection as soon as it is established.
 *
 *   rdma_refuser HOST PORT
 */
#include "lab.h"

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *address;
	struct ibv_qp_init_attr attributes = {
		.cap = { 1, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_cm_id *listener, *id;

	if (argc != 3)
		die("usage: rdma_refuser HOST PORT");
	check(rdma_getaddrinfo(argv[1], argv[2], &hints, &address), "rdma_getaddrinfo");
	check(rdma_create_ep(&listener, address, NULL, &attributes), "rdma_create_ep");
	rdma_freeaddrinfo(address);
	check(rdma_listen(listener, 8), "rdma_listen");
	puts("listening");
	fflush(stdout);
	for (;;) {
		check(rdma_get_request(listener, &id), "rdma_get_request");
		/* The peer may have gone. */
		if (!rdma_accept(id, NULL))
			rdma_disconnect(id);
		rdma_destroy_ep(id);
	}
}
