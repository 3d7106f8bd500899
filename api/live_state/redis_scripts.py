"""Lua scripts that Redis runs in one step: each is one round trip, and nobody sees half of it.

They are sent as text (EVAL), not by their hash: a server that was restarted or flushed knows no hashes."""

from typing import Final

GET_CHAIN: Final = """
-- KEYS: names of chains, the best first. ARGV: what stands before a chain's key, life in ms.
for place, key in ipairs(KEYS) do
  local name = redis.call('GET', key)
  local chain = name and redis.call('GET', ARGV[1] .. name)
  if chain then
    redis.call('PEXPIRE', key, ARGV[2])
    redis.call('PEXPIRE', ARGV[1] .. name, ARGV[2])
    return {place, chain}
  end
end
return false
"""

PUT_CHAIN: Final = """
-- KEYS: the chain, its inference, its session, its names. ARGV: life in ms, chain, session id, name.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[1])
redis.call('SET', KEYS[3], '', 'PX', ARGV[1])
for place = 4, #KEYS do
  redis.call('SET', KEYS[place], ARGV[4], 'PX', ARGV[1])
end
"""

PUT_INFERENCE: Final = """
-- KEYS: inference, session. ARGV: life in ms, session id.
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[1])
redis.call('SET', KEYS[2], '', 'PX', ARGV[1])
"""

CLAIM: Final = """
-- KEYS: the claim, and since when nothing was lost. ARGV: life in ms, content.
-- Returns the content that holds the claim, and for how many ms no claim can have been lost.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since = tonumber(redis.call('GET', KEYS[2]) or now)
redis.call('SET', KEYS[2], string.format('%.0f', since), 'PX', ARGV[1])
local holder = redis.call('GET', KEYS[1])
if holder then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
else
  holder = ARGV[2]
  redis.call('SET', KEYS[1], holder, 'PX', ARGV[1])
end
return {holder, now - since}
"""

RELEASE: Final = """
-- KEYS: the claim. ARGV: content.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
"""

TAKE: Final = """
-- KEYS: buckets. ARGV: for each the seconds that one request takes to refill, and how many fit.
-- Returns for each the seconds until it has one, and until it is full. See api/live_state/buckets.py.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local full_in, waits, free = {}, {}, true
for i, key in ipairs(KEYS) do
  local refill, burst = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  full_in[i] = math.min(math.max(tonumber(redis.call('GET', key) or now) - now, 0), refill * burst)
  waits[i] = full_in[i] - refill * (burst - 1)
  if waits[i] > 0.000001 then free = false else waits[i] = 0 end
end
local reply = {}
for i, key in ipairs(KEYS) do
  if free then
    full_in[i] = full_in[i] + tonumber(ARGV[2 * i - 1])
    redis.call('SET', key, string.format('%.6f', now + full_in[i]), 'PX', math.ceil(full_in[i] * 1000))
  end
  reply[2 * i - 1] = string.format('%.6f', waits[i])
  reply[2 * i] = string.format('%.6f', full_in[i])
end
return reply
"""

SPEND: Final = """
-- KEYS: windows. ARGV: life in ms, then for each what to add, and its limit (-1: none).
-- Returns what each had before. See `Windows` in api/live_state/memory.py.
local had, free = {}, true
for i, key in ipairs(KEYS) do
  local add, limit = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
  had[i] = tonumber(redis.call('GET', key) or 0)
  if limit >= 0 and had[i] + math.max(add, 1) > limit then free = false end
end
for i, key in ipairs(KEYS) do
  local add = tonumber(ARGV[2 * i])
  if free and add > 0 then
    redis.call('INCRBY', key, add)
    redis.call('PEXPIRE', key, ARGV[1])
  end
end
return had
"""

SUM_COUNTS: Final = """
-- KEYS: slots of counts, whose fields are REPLICA:NAME. Returns names and their sums.
local sums, reply = {}, {}
for _, key in ipairs(KEYS) do
  local entries = redis.call('HGETALL', key)
  for i = 1, #entries, 2 do
    local name = string.match(entries[i], '^[^:]*:(.*)$')
    sums[name] = (sums[name] or 0) + tonumber(entries[i + 1])
  end
end
for name, sum in pairs(sums) do
  reply[#reply + 1] = name
  reply[#reply + 1] = sum
end
return reply
"""
