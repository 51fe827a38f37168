# The structs of deduplication: keys that are known, and the keys of a message.  Included by _plane.pxd, which names their owners.

cdef struct key_t:
    uint64_t hash               # 0: a hole
    int64_t expires             # ms
    uint64_t seq                # of the message that has it; 0: not known

cdef struct keyring_t:          # of keys, and the index of it
    key_t *keys                 # NULL: none
    uint64_t *slots
    uint32_t mask               # places less 1
    uint32_t slots_mask

cdef struct window_t:
    keyring_t ring
    keyring_t old                  # before the ring grew: entries from `moved` to `grown` are still there.  keys NULL: none
    uint64_t moved
    uint64_t grown
    uint64_t first              # number of the oldest entry, or hole
    uint64_t entered            # since the window was made: the number of the next
    uint32_t size               # the most entries that there may be
    uint32_t live               # keys
    int64_t ttl                 # ms; -1: none
    const uint8_t *header       # where the key of a message is; borrowed from the object
    uint32_t header_n
    const hash_key_t *hash_key  # NULL: the plane finds no keys by itself; borrowed from a HashKey
    uint64_t duplicates         # messages with a key that was known
    bint by_content             # the body is the key of a message without a key in its headers
    bint waiting                # a key counts until its message is settled
    uint8_t action              # ON_DUPLICATE_*: what becomes of a message with a known key
    uint8_t group_from          # GROUP_*: a key counts only in its message's group; where the group's name stands
    uint32_t group_n
    uint8_t group_property      # GROUP_PROPERTY: the bit of its flag
    const uint8_t *group        # GROUP_HEADER: the header's name; borrowed from the object.  Its octets: group_n

cdef struct keys_t:
    queue_key_t *of_queues      # of those that have a window
    uint32_t n
    uint64_t of_exchange        # 0: none
    int64_t ttl                 # ms, as the message says itself; -1: it does not
