/*
 * Uses each function of weft_tuples.h. The arguments are the address of a server, that of another
 * one that asks for a token, the file of the token, that of one by TLS, and a file of certificates.
 */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <weft_tuples.h>

#define BYTES(text) ((struct weft_tuples_bytes){(text), strlen(text)})
#define COUNT 200

static void expect(int line, int found, int expected)
{
    if (found != expected) {
        fprintf(stderr, "line %d: %d (%s), not %d\n", line, found, weft_tuples_text(found), expected);
        exit(1);
    }
}

#define IS(found, expected) expect(__LINE__, (found), (expected))

static void is_value(int line, const struct weft_tuples_item *item, const char *value)
{
    const struct weft_tuples_bytes *field = item->fields;
    if (item->fields_count == 0 || field->len != strlen(value) || memcmp(field->data, value, field->len) != 0) {
        fprintf(stderr, "line %d: not %s\n", line, value);
        exit(1);
    }
}

#define VALUE(item, value) is_value(__LINE__, (item), (value))

static int put(struct weft_tuples *client, const char *element, const char *value, int64_t timeout_ms)
{
    struct weft_tuples_bytes field = BYTES(value);
    struct weft_tuples_tuple tuple = {.fields = &field, .fields_count = 1};
    return weft_tuples_put(client, BYTES(element), &tuple, 1, 0, timeout_ms);
}

static int take(struct weft_tuples *client, const char *element, int64_t timeout_ms, struct weft_tuples_list **list)
{
    struct weft_tuples_bytes name = BYTES(element);
    return weft_tuples_take(client, &name, 1, 1, 0, timeout_ms, list);
}

static void operations(struct weft_tuples *client)
{
    struct weft_tuples_list *list;
    struct weft_tuples_bytes fields[2] = {BYTES("1"), {"\0x", 2}};
    struct weft_tuples_bytes names[2] = {BYTES("none"), BYTES("a")};
    struct weft_tuples_tuple tuples[2] = {
        {.fields = fields, .fields_count = 2},
        {.fields = fields, .fields_count = 1},
    };
    IS(weft_tuples_put(client, BYTES("a"), tuples, 2, 0, WEFT_TUPLES_FOR_EVER), WEFT_TUPLES_OK);
    IS(put(client, "a", "2", 0), WEFT_TUPLES_OK);
    IS(weft_tuples_read(client, BYTES("a"), 0, -1, 100, &list), WEFT_TUPLES_OK);
    assert(list->count == 3 && list->items[0].fields_count == 2);
    assert(list->items[0].fields[1].len == 2 && memcmp(list->items[0].fields[1].data, "\0x", 2) == 0);
    VALUE(&list->items[2], "2");

    struct weft_tuples_place places[1] = {{BYTES("a"), &list->items[1].rank}};
    struct weft_tuples_list *seen;
    IS(weft_tuples_observe(client, places, 1, 9, 0, 0, &seen), WEFT_TUPLES_OK);
    assert(seen->count == 1);
    VALUE(&seen->items[0], "2");
    weft_tuples_free_list(seen);
    weft_tuples_free_list(list);

    IS(weft_tuples_take(client, names, 2, 2, WEFT_TUPLES_JUST | WEFT_TUPLES_BACK, 0, &list), WEFT_TUPLES_OK);
    assert(list->count == 2 && list->items[0].element == 1);
    VALUE(&list->items[0], "2");
    weft_tuples_free_list(list);
    IS(weft_tuples_transfer(client, BYTES("a"), BYTES("b"), 0, 0, &list), WEFT_TUPLES_OK);
    VALUE(&list->items[0], "1");
    weft_tuples_free_list(list);
    IS(take(client, "a", 0, &list), WEFT_TUPLES_TIMEOUT);
    IS(take(client, "a", 10, &list), WEFT_TUPLES_TIMEOUT);
}

static void orders(struct weft_tuples *client)
{
    struct weft_tuples_list *list;
    struct weft_tuples_elements *elements;
    struct weft_tuples_bytes field = BYTES("v");
    struct weft_tuples_tuple tuple = {.key = BYTES("k"), .fields = &field, .fields_count = 1};
    int existed;
    IS(weft_tuples_create(client, BYTES("k"), WEFT_TUPLES_KEY, WEFT_TUPLES_BOUND, 1), WEFT_TUPLES_OK);
    IS(weft_tuples_create(client, BYTES("k"), WEFT_TUPLES_TIME, WEFT_TUPLES_BOUND, 1), WEFT_TUPLES_EXISTS);
    IS(weft_tuples_create(client, BYTES("t"), WEFT_TUPLES_TIME, WEFT_TUPLES_UNBOUNDED, 0), WEFT_TUPLES_OK);
    IS(weft_tuples_put(client, BYTES("k"), &tuple, 1, 0, 0), WEFT_TUPLES_OK);
    IS(weft_tuples_put(client, BYTES("k"), &tuple, 1, 0, 0), WEFT_TUPLES_FULL);
    IS(weft_tuples_put(client, BYTES("k"), &tuple, 1, 0, 10), WEFT_TUPLES_TIMEOUT);
    IS(weft_tuples_read_key(client, BYTES("k"), BYTES("k"), 9, &list), WEFT_TUPLES_OK);
    assert(list->count == 1 && list->items[0].rank.key.len == 1);
    weft_tuples_free_list(list);
    tuple.key.len = 0;
    tuple.stamp.ms = 7;
    IS(weft_tuples_put(client, BYTES("t"), &tuple, 1, WEFT_TUPLES_APPEND, 0), WEFT_TUPLES_OK);
    IS(weft_tuples_put(client, BYTES("t"), &tuple, 1, WEFT_TUPLES_APPEND, 0), WEFT_TUPLES_STAMP);
    struct weft_tuples_stamp first = {7, 0}, last = {8, 0};
    IS(weft_tuples_read_stamps(client, BYTES("t"), first, last, 9, &list), WEFT_TUPLES_OK);
    assert(list->count == 1 && list->items[0].rank.stamp.ms == 7);
    weft_tuples_free_list(list);
    IS(weft_tuples_elements(client, &elements), WEFT_TUPLES_OK);
    assert(elements->count == 3 && elements->elements[1].sync == WEFT_TUPLES_BOUND && elements->elements[1].n == 1);
    assert(elements->elements[1].tuples == 1 && memcmp(elements->elements[1].name.data, "k", 1) == 0);
    weft_tuples_free_elements(elements);
    IS(weft_tuples_delete(client, BYTES("k"), &existed), WEFT_TUPLES_OK);
    assert(existed == 1);
    IS(weft_tuples_delete(client, BYTES("k"), &existed), WEFT_TUPLES_OK);
    assert(existed == 0);
}

static void wrong_arguments(struct weft_tuples *client)
{
    struct weft_tuples_list *list;
    struct weft_tuples *other;
    IS(put(NULL, "a", "1", 0), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_take(client, NULL, 1, 1, 0, 0, &list), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_take(client, NULL, 0, 1, 0, 0, &list), WEFT_TUPLES_LIMIT);
    IS(weft_tuples_put(client, BYTES("a"), NULL, 1, 0, 0), WEFT_TUPLES_ARGUMENT);
    IS(take(client, "a", 0, NULL), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_create(client, BYTES("x"), 3, 0, 0), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_read(client, BYTES("b"), 0, -1, 1, NULL), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_transfer(client, BYTES("a"), BYTES("b"), 16, 0, &list), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_connect(NULL, 0, &other), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_connect("/nothing/here", 0, &other), WEFT_TUPLES_LOST);
    weft_tuples_close(NULL);
    weft_tuples_free_list(NULL);
    weft_tuples_free_elements(NULL);
}

static void *put_many(void *client)
{
    for (int number = 0; number < COUNT; number++)
        IS(put(client, "many", "1", WEFT_TUPLES_FOR_EVER), WEFT_TUPLES_OK);
    return NULL;
}

/* Threads share a client. Another client waits for what they put. */
static void threads(struct weft_tuples *client, const char *server)
{
    pthread_t threads[4];
    struct weft_tuples *other;
    struct weft_tuples_list *list;
    IS(weft_tuples_connect(server, 10000, &other), WEFT_TUPLES_OK);
    for (int at = 0; at < 4; at++)
        assert(pthread_create(&threads[at], NULL, put_many, client) == 0);
    for (int number = 0; number < 4 * COUNT; number++) {
        IS(take(other, "many", WEFT_TUPLES_FOR_EVER, &list), WEFT_TUPLES_OK);
        weft_tuples_free_list(list);
    }
    for (int at = 0; at < 4; at++)
        pthread_join(threads[at], NULL);
    IS(take(other, "many", 0, &list), WEFT_TUPLES_TIMEOUT);
    weft_tuples_close(other);
}

static void credentials(const char *server, const char *token_file, const char *tls_server,
                        const char *ca_file)
{
    struct weft_tuples *client;
    struct weft_tuples_credentials none = {0}, right = {.token_file = token_file};
    struct weft_tuples_credentials missing = {.token_file = "/nowhere/at/all"};
    IS(weft_tuples_connect(server, 0, &client), WEFT_TUPLES_TOKEN);
    IS(weft_tuples_connect_with(server, 0, &none, &client), WEFT_TUPLES_TOKEN);
    IS(weft_tuples_connect_with(server, 0, &missing, &client), WEFT_TUPLES_CREDENTIALS);
    IS(weft_tuples_connect_with(server, 0, &right, NULL), WEFT_TUPLES_ARGUMENT);
    IS(weft_tuples_connect_with(server, 10000, &right, &client), WEFT_TUPLES_OK);
    IS(put(client, "a", "1", 0), WEFT_TUPLES_OK);
    weft_tuples_close(client);
    /* Not an authority, and a server that is not trusted. */
    missing = (struct weft_tuples_credentials){.ca_file = token_file};
    IS(weft_tuples_connect_with(tls_server, 0, &missing, &client), WEFT_TUPLES_CREDENTIALS);
    IS(weft_tuples_connect_with(tls_server, 0, &right, &client), WEFT_TUPLES_LOST);
    right = (struct weft_tuples_credentials){.ca_file = ca_file};
    IS(weft_tuples_connect_with(tls_server, 10000, &right, &client), WEFT_TUPLES_OK);
    IS(put(client, "a", "1", 0), WEFT_TUPLES_OK);
    weft_tuples_close(client);
}

int main(int argc, char **argv)
{
    struct weft_tuples *client;
    assert(argc == 6);
    credentials(argv[2], argv[3], argv[4], argv[5]);
    IS(weft_tuples_connect(argv[1], 10000, &client), WEFT_TUPLES_OK);
    operations(client);
    orders(client);
    wrong_arguments(client);
    threads(client, argv[1]);
    weft_tuples_close(client);
    puts("done");
    return 0;
}
