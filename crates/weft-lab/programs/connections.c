/*
 * Many connections, to measure their cost.
 *
 *   connections serve PORT COUNT             accepts COUNT connections in all, until all have ended
 *   connections hold HOST PORT COUNT SECONDS opens COUNT, keeps them idle, and closes them
 *   connections churn HOST PORT COUNT        opens and closes one after the other, COUNT times
 *
 * It prints lines of "WHEN: memory KIB descriptors N threads N" and, after it has kept connections
 * idle, "idle: cpu MICROSECONDS us in SECONDS s". Memory is resident memory: anonymous and shared
 * pages, not files. The program itself has one buffer, one completion queue and, per connection,
 * one posted receive.
 */
#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lab.h"

enum {
	QUEUE_DEPTH = 16,
	/* Memory that allocators and the kernel may retain. */
	SLACK_KIB = 512,
	/* After a tenth of so many connections caches have their size. */
	MANY = 1000,
	SETTLE_MS = 20,
	LEAK_S = 240, /* what is left for so long has leaked */
};

/* What the process uses. Memory is in KiB. */
struct resources {
	long memory;
	int descriptors, threads;
};

static struct lab_objects objects;

static int entries_of(const char *path)
{
	DIR *directory = check_pointer(opendir(path), path);
	int count = 0;

	for (struct dirent *entry; (entry = readdir(directory));)
		count += entry->d_name[0] != '.';
	closedir(directory);
	return count;
}

static struct resources used(void)
{
	FILE *status = check_pointer(fopen("/proc/self/status", "r"), "/proc/self/status");
	long anonymous = 0, shared = 0;
	char line[256];

	while (fgets(line, sizeof line, status)) {
		sscanf(line, "RssAnon: %ld kB", &anonymous);
		sscanf(line, "RssShmem: %ld kB", &shared);
	}
	fclose(status);
	/* The descriptor that reads the list of descriptors does not count. */
	return (struct resources){ anonymous + shared, entries_of("/proc/self/fd") - 1,
				   entries_of("/proc/self/task") };
}

static struct resources report(const char *when)
{
	struct resources now = used();

	printf("%s: memory %ld descriptors %d threads %d\n", when, now.memory, now.descriptors,
	       now.threads);
	fflush(stdout);
	return now;
}

/* Waits until the process uses no more than it did before: closed connections are freed in the
 * background. */
static void settle(struct resources before)
{
	for (int i = 0; i < LEAK_S * 1000 / SETTLE_MS; i++) {
		struct resources now = used();

		if (now.memory <= before.memory + SLACK_KIB &&
		    now.descriptors <= before.descriptors && now.threads <= before.threads)
			return;
		usleep(SETTLE_MS * 1000);
	}
}

/* Gives an identifier a queue pair. The first call also makes the shared objects. */
static void prepare(struct rdma_cm_id *id)
{
	if (!objects.pd) {
		make_objects(&objects, id->verbs);
		report("before");
	}
	give_queue_pair(&objects, id, QUEUE_DEPTH);
}

static void serve(const char *port, int count)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_cm_id *listener = listen_on(channel, port);
	struct rdma_conn_param parameters = connection_parameters();
	struct resources tenth = { 0 };
	int established = 0, gone = 0;

	while (gone < count) {
		struct lab_event event = take_event(channel);

		switch (event.kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			prepare(event.id);
			check(rdma_accept(event.id, &parameters), "rdma_accept");
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (++established == count / 10)
				tenth = report("tenth");
			if (established == count)
				report("all");
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			rdma_disconnect(event.id);
			destroy_with_queue_pair(&objects, event.id);
			gone++;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			die("unexpected event %s", rdma_event_str(event.kind));
		}
	}
	if (count >= MANY)
		settle(tenth);
	report("end");
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

static struct rdma_cm_id *open_one(struct rdma_event_channel *channel, const char *host,
				   const char *port)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_cm_id *id = route_to(channel, host, port);

	prepare(id);
	check(rdma_connect(id, &parameters), "rdma_connect");
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

static void close_one(struct rdma_event_channel *channel, struct rdma_cm_id *id)
{
	check(rdma_disconnect(id), "rdma_disconnect");
	expect_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	destroy_with_queue_pair(&objects, id);
}

static long cpu_microseconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000L +
	       usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void hold(const char *host, const char *port, int count, int seconds)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_cm_id **ids = check_pointer(calloc(count, sizeof *ids), "calloc");
	long used;

	for (int i = 0; i < count; i++)
		ids[i] = open_one(channel, host, port);
	report("all");
	sleep(1); /* work that follows a connection's start is done by then */
	used = cpu_microseconds();
	sleep(seconds);
	printf("idle: cpu %ld us in %d s\n", cpu_microseconds() - used, seconds);
	for (int i = 0; i < count; i++)
		close_one(channel, ids[i]);
	report("end");
	free(ids);
}

static void churn(const char *host, const char *port, int count)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct resources tenth = { 0 };

	for (int i = 0; i < count; i++) {
		close_one(channel, open_one(channel, host, port));
		if (i + 1 == count / 10)
			tenth = report("tenth");
	}
	if (count >= MANY)
		settle(tenth);
	report("end");
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "serve"))
		serve(argv[2], atoi(argv[3]));
	else if (argc == 6 && !strcmp(argv[1], "hold"))
		hold(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]));
	else if (argc == 5 && !strcmp(argv[1], "churn"))
		churn(argv[2], argv[3], atoi(argv[4]));
	else
		die("usage: see the head of connections.c");
	return 0;
}
