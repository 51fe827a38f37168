"""Streams against a small model in plain Python, over restarts and kill -9: each reader sees each kept message from its
place on once, in order, but for what it gave back; and the offset that is kept for it is the lowest that it has neither
acknowledged nor, where it began no later than there, passed over by its filter."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.upkeep.test_upkeep import Place

from brokerd.wire import methods
from brokerd.wire.frames import FRAME_BODY, body_frames, header_frame
from brokerd.wire.properties import Properties, encode_header
from brokerd.wire.values import Timestamp

HOUR = 3600
BEGINNING = 1_000_000 * HOUR    # s
NAMES = [None, "billing", "search"]
VALUES = ["eu", "us", None]
FORMS = st.one_of(
    st.sampled_from([None, "first", "next", "last"]), st.integers(0, 150), st.integers(-60, -1),
    st.tuples(st.just("time"), st.integers(0, 12)), st.tuples(st.just("ago"), st.integers(1, 12)))
READERS = st.integers(2, 4)
ACTIONS = st.lists(st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 30)), st.tuples(st.just("publish"), st.integers(1, 30)),
    st.tuples(st.just("join"), READERS, FORMS, st.integers(1, 30), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("join"), READERS, FORMS, st.integers(1, 30), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.sampled_from(["ack", "ack", "requeue", "reject"]), READERS, st.integers(0, 29), st.booleans()),
    st.tuples(st.just("leave"), READERS), st.tuples(st.just("retain"), st.integers(0, 150)),
    st.tuples(st.just("tick")), st.tuples(st.just("kill")), st.tuples(st.just("stop")),
), max_size=30)


class Reader:
    def __init__(self, begins, prefetch, name, filtered):
        self.next, self.prefetch, self.name, self.filtered = begins, prefetch, name, filtered
        self.out, self.again, self.tag = {}, [], 0
        self.passes = False     # What its filter passes over raises the kept offset, as acks do.
        self.rests = False      # It has come to the end.

    @property
    def lowest(self):
        return min([*self.out.values(), *self.again], default=self.next)


class Model:
    """The stream and its readers; ``wanted`` says what each is to get next."""

    def __init__(self):
        self.times, self.values = [], []        # of all messages that there ever were
        self.first = 1
        self.readers = {}                       # by channel
        self.kept = {}                          # by name
        self.whole = True                       # retention has taken nothing yet

    @property
    def end(self):
        return len(self.times) + 1

    def begin(self, form, name, now, last):
        if form is None:
            return self.kept.get(name, self.end)
        if isinstance(form, tuple):
            when = BEGINNING + form[1] * HOUR if form[0] == "time" else now - form[1] * HOUR
            return next((at for at, time in enumerate(self.times, 1) if time >= when and at >= self.first), self.end)
        if isinstance(form, int):
            return max(form if form >= 0 else self.end + form, 1)
        return {"first": 1, "next": self.end, "last": last}[form]

    def keep_passed(self, reader):
        if reader.name and reader.passes:
            self.kept[reader.name] = max(self.kept[reader.name], reader.lowest)

    def wanted(self, reader):
        """What a reader gets now: (offset, redelivered)."""
        found, reader.rests = [], False
        while len(reader.out) < reader.prefetch:
            reader.again = sorted(offset for offset in reader.again if offset >= self.first)
            if reader.again:
                offset, again = reader.again.pop(0), True
            else:
                places = range(max(reader.next, self.first), self.end)
                offset = next((at for at in places if not reader.filtered or self.values[at - 1] == "eu"), None)
                if offset is None:
                    reader.next, reader.rests = max(reader.next, self.end), True
                    break
                reader.next, again = offset + 1, False
            reader.tag += 1
            reader.out[reader.tag] = offset
            found.append((offset, again))
        return found


class Machine:
    def __init__(self, path):
        self.model, self.now, self.former = Model(), BEGINNING, []
        self.place = Place(path)
        self.begin()

    def begin(self):
        self.place.node.core.clock = lambda: self.now * 1_000_000_000
        self.queue = self.place.vhost.queues.get("q") or self.place.vhost.add_queue(
            "q", durable=True, auto_delete=False, arguments={"x-queue-type": "stream"})
        self.place.client.send(*[(channel, methods.ChannelOpen()) for channel in (2, 3, 4)])

    def publish(self, count):
        self.now += HOUR
        octets = b""
        for _ in range(count):
            value = VALUES[len(self.model.times) // 7 % 3]
            headers = {} if value is None else {"x-stream-filter-value": value}
            body = self.model.end.to_bytes(4) * 500
            octets += methods.BasicPublish(routing_key="q").frame(1)
            octets += header_frame(1, encode_header(len(body), Properties(headers=headers, delivery_mode=2)))
            octets += body_frames(1, body, 4096)
            self.model.times.append(self.now)
            self.model.values.append(value)
        return self.place.client.raw(octets)

    def join(self, channel, form, prefetch, name, filtered):
        model = self.model
        if channel in model.readers or any(name and one.name == name for one in model.readers.values()):
            return []
        arguments = {"x-stream-filter": "eu"} if filtered else {}
        if name:
            arguments["x-stream-reader"] = name
        if form is not None:
            arguments["x-stream-offset"] = form
        if isinstance(form, tuple):
            arguments["x-stream-offset"] = (
                Timestamp(BEGINNING + form[1] * HOUR) if form[0] == "time" else f"{form[1]}h")
            if form[0] == "time" and BEGINNING + form[1] * HOUR > self.now:
                return []
        full = [segment["base_seq"] for segment in self.queue.segments() if segment["records"]]
        begins = model.begin(form, name, self.now, full[-1] if full else 1)
        model.readers[channel] = Reader(begins, prefetch, name, filtered)
        out = self.place.client.send((channel, methods.BasicQos(prefetch_count=prefetch)), (
            channel, methods.BasicConsume(queue="q", consumer_tag=f"t{channel}", arguments=arguments)))
        reader, kept = model.readers[channel], model.kept.get(name)
        # Where a place is looked for, as a time is, it counts as one beyond what is kept.
        looked_for = isinstance(form, tuple) or form in ("first", "last")
        reader.passes = form is None or (not looked_for and begins <= kept if kept is not None else begins <= model.end)
        if name and kept is None:
            model.kept[name] = min(self.queue.tracked.offset(name), max(begins, model.first))
        return out

    def settle(self, action, channel, which, multiple):
        reader = self.model.readers.get(channel)
        if reader is None or not reader.out:
            return []
        tag = list(reader.out)[which % len(reader.out)]
        chosen = [one for one in reader.out if one == tag or (multiple and one < tag)]
        offsets = [reader.out.pop(one) for one in chosen]
        if action == "requeue":
            reader.again += offsets
        elif reader.name:
            self.model.kept[reader.name], reader.passes = reader.lowest, True
        if action == "ack":
            return self.place.client.send((channel, methods.BasicAck(delivery_tag=tag, multiple=multiple)))
        return self.place.client.send((channel, methods.BasicNack(
            delivery_tag=tag, multiple=multiple, requeue=action == "requeue")))

    def leave(self, channel):
        reader = self.model.readers.pop(channel, None)
        if reader is None:
            return []
        self.model.keep_passed(reader)
        return self.place.client.send((channel, methods.ChannelClose(reply_code=200)), (channel, methods.ChannelOpen()))

    def retain(self, length):
        stream = self.queue.stream
        stream.set_limits(max_length=length)
        stream.retain(1000)
        stream.set_limits()
        first = stream.first_offset
        self.model.whole = self.model.whole and first == self.model.first
        self.model.first = first
        return self.place.client.read()

    def tick(self):
        self.place.ticks(1)
        self.place.thread.run()         # Indexes are written.
        return self.place.client.read()

    def start_again(self, killed):
        if killed:
            self.former.append((self.place.node, self.place.client, self.place.vhost))    # Nothing of it is closed.
        else:
            for reader in self.model.readers.values():
                self.model.keep_passed(reader)
            self.place.close()
        self.place.reopen()
        self.model.readers.clear()
        for name, kept in self.model.kept.items():      # A start lowers what is beyond the end.
            self.model.kept[name] = min(kept, self.model.end)
        self.begin()
        return []

    def do(self, action, *values):
        if action in ("ack", "requeue", "reject"):
            out = self.settle(action, *values)
        elif action in ("kill", "stop"):
            out = self.start_again(action == "kill")
        else:
            out = getattr(self, action)(*values)
        self.check(out)

    def check(self, out):
        came = came_by_channel(out)
        for channel, reader in self.model.readers.items():
            assert came.pop(channel, []) == self.model.wanted(reader), channel
        assert came == {}
        self.queue.check()
        assert self.queue.ready == self.model.end - self.model.first
        passing = {one.name: one for one in self.model.readers.values() if one.passes}
        for name, kept in self.model.kept.items():
            found, most = self.queue.tracked.offset(name), kept
            if name in passing:
                most = max(kept, passing[name].lowest)
                kept = most if passing[name].rests else kept        # Before, it may have told so or not.
            if self.model.whole:
                assert kept <= found <= most, name
            else:
                assert found <= max(most, self.model.first)     # Of messages that are gone nothing is acknowledged.
            self.model.kept[name] = found

    def close(self):
        self.place.close()
        self.former.clear()


def came_by_channel(out):
    """(offset, redelivered) of each message that came, by its channel."""
    came, method = {}, None
    for frame in out:
        if isinstance(frame, tuple):
            method = frame
        elif getattr(frame, "kind", None) == FRAME_BODY:
            channel, deliver = method
            came.setdefault(channel, []).append((int.from_bytes(frame.payload[:4]), deliver.redelivered))
    return came


@given(actions=ACTIONS)
@settings(deadline=None, max_examples=30)
def test_a_stream_is_what_a_model_says_over_restarts_and_kills(tmp_path_factory, actions):
    machine = Machine(tmp_path_factory.mktemp("stream"))
    for action in (("publish", 40), *actions, ("publish", 3)):
        machine.do(*action)
    machine.close()
