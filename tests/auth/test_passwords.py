"""Password hashes: RabbitMQ's own, and what never logs in."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.auth.passwords import ALGORITHMS, BCRYPT, SHA256, SHA512, Memory, hash_new, hash_password, is_hash, verify


def test_the_hash_of_rabbitmqs_manual_is_understood():
    # "Credentials and Passwords": salt 908DC60A, password test12.
    assert verify("test12", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", SHA256)


@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if each != BCRYPT])
@given(password=st.binary(min_size=1, max_size=40), other=st.binary(max_size=40))
def test_only_the_password_that_was_hashed_is_right(algorithm, password, other):
    made = hash_password(password, algorithm)
    assert is_hash(made, algorithm)
    assert verify(password, made, algorithm)
    assert verify(other, made, algorithm) == (other == password)


@pytest.mark.parametrize(("algorithm", "function"), [
    ("rabbit_password_hashing_sha256", hashlib.sha256),
    ("rabbit_password_hashing_sha512", hashlib.sha512),
    ("rabbit_password_hashing_md5", hashlib.md5),
])
def test_a_hash_is_salt_and_digest_of_both_in_base64(algorithm, function):
    octets = base64.b64decode(hash_password("grün", algorithm))
    assert octets[4:] == function(octets[:4] + "grün".encode()).digest()


def test_each_hash_has_a_salt_of_its_own():
    assert len({hash_password("x") for _ in range(8)}) > 1


def test_an_empty_password_or_hash_never_logs_in():
    assert not verify("", hash_password(""))
    assert not verify("", "")
    assert not verify("x", "")


@pytest.mark.parametrize("broken", ["x", "====", "AAAA", "ä" * 48, "A" * 47 + "\n", "A" * 44])
def test_what_is_no_hash_is_told_and_logs_nobody_in(broken):
    assert not is_hash(broken, SHA256)
    assert not verify("x", broken)


def test_an_unknown_algorithm_logs_nobody_in():
    assert not verify("x", hash_password("x"), "rabbit_password_hashing_rot13")


def test_a_new_hash_is_bcrypts_and_no_other_password_has_it():
    made, algorithm = hash_new("grün")
    assert (algorithm, is_hash(made, algorithm), made[:7]) == (BCRYPT, True, "$2b$10$")
    assert verify("grün", made, algorithm)
    assert not verify("grun", made, algorithm)
    assert not verify("", made, algorithm)


def test_lavinmqs_hashes_are_known_and_costs_without_end_are_not():
    import bcrypt

    assert verify("test", bcrypt.hashpw(b"test", bcrypt.gensalt(4, b"2a")).decode(), BCRYPT)
    assert is_hash("$2a$04$" + 53 * "a", BCRYPT)
    for bad in ("$2a$31$" + 53 * "a", "$2a$03$" + 53 * "a", "$2x$10$" + 53 * "a", "$2a$04$" + 52 * "a"):
        assert not is_hash(bad, BCRYPT)
        assert not verify("test", bad, BCRYPT)


@pytest.mark.parametrize("password", [b"x" * 73, b"a\0b"])
def test_a_password_that_bcrypt_cannot_take_has_another_hash(password):
    made, algorithm = hash_new(password)
    assert algorithm == SHA512
    assert verify(password, made, algorithm)
    assert not verify(password, hash_new("x")[0], BCRYPT)


def test_the_memory_knows_what_was_right_for_that_hash():
    memory = Memory()
    memory.note("hash", "right")
    assert memory.knows("hash", b"right")
    assert not memory.knows("hash", "wrong")
    assert not memory.knows("other", "right")
