/*
 * A client of an RDMA listener that it has no business with.
 *
 *   rdma_stranger HOST PORT HEX   connects with this private data, and prints "refused" if the
 *                                 listener refuses
 */
#include "lab.h"

enum { DATA_MAX = 56 };

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *address;
	struct ibv_qp_init_attr attributes = {
		.cap = { 1, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_conn_param param = { 0 };
	uint8_t data[DATA_MAX];
	struct rdma_cm_id *id;
	size_t length;

	if (argc != 4 || strlen(argv[3]) > 2 * DATA_MAX)
		die("usage: rdma_stranger HOST PORT HEX");
	for (length = 0; argv[3][2 * length]; length++)
		if (sscanf(argv[3] + 2 * length, "%2hhx", &data[length]) != 1)
			die("no hexadecimal digits");
	check(rdma_getaddrinfo(argv[1], argv[2], &hints, &address), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, address, NULL, &attributes), "rdma_create_ep");
	rdma_freeaddrinfo(address);
	param.private_data = data;
	param.private_data_len = length;
	if (!rdma_connect(id, &param))
		die("DEFECT: the listener has accepted");
	if (errno != ECONNREFUSED)
		die("rdma_connect: %s", strerror(errno));
	puts("refused");
	rdma_destroy_ep(id);
	return 0;
}
