--[[
commit: make each member whole or not at all, in order.

  ARGV[1] now, or '' for the server's own time    ARGV[2] the day, for the statistics
  ARGV[3] members (msgpack), each {job, version, plan, body, guards, operations}
    version      what is stored must carry it; '' the job must not exist; '*' this is about no job's record
    plan, body   fingerprint that must be known, or is made known by the body; '' for none
    guards       {name, facts ...}: see `guards`
    operations   {verb, facts ...}: see `verbs`; a verb in capitals is a command of the server, its second word a key
                 without the prefix
  returns the time, then per member '' or {why, which guard, facts ...}

Everything is looked at before anything of a member is written, and the server itself refuses the whole script when it may not
write (out of memory, replica, failed AOF): that is what the `#!lua` in front of it is for. Behind a refused change of a
job its later ones are refused too.
]]
local now, day = clock(ARGV[1]), ARGV[2]
local soon = ARGV[1] == '' and 0.05 or 0  -- callers only guess the server's time: what is due now may look as if it were not
local counts = {}

local guards = {
  holds = function(entry, token)
    if not is_held('holders', entry, token) then return {} end
  end,
  overdue = function(entry, token)
    if not is_held('holders', entry, token) then return {} end
    if tonumber(call('ZSCORE', P .. 'leases', entry)) > now then return {} end
  end,
  waiting = function(ready, entry)
    if not call('ZSCORE', P .. ready, entry) then return {} end
  end,
  reserved = function(entry, token)
    if not is_held('reservations', entry, token) then return {} end
  end,
  foremost = function(queue, rank, job, ...)
    promote(now, 100)
    rank = tonumber(rank)
    for _, kind in ipairs({...}) do
      local head = call('ZRANGE', P .. 'ready:' .. queue .. ':' .. kind, 0, 0, 'WITHSCORES')
      local urgency = tonumber(head[2])
      if urgency and (urgency < rank or (urgency == rank and job_of(head[1]) < job)) then return {} end
    end
  end,
  unused = function(key)
    local job = call('GET', P .. key)
    if job then return {job} end
  end,
  free = function(slot, job)
    local holder = call('GET', P .. slot)
    if holder and holder ~= job then return {holder} end
  end,
  exists = function(key)
    if call('EXISTS', P .. key) == 0 then return {} end
  end,
  absent = function(key)
    if call('EXISTS', P .. key) == 1 then return {} end
  end,
  fresh = function(hash, field)
    if call('HEXISTS', P .. hash, field) == 1 then return {} end
  end,
  known = function(hash, field)
    if call('HEXISTS', P .. hash, field) == 0 then return {} end
  end,
  same = function(hash, field, value)
    if call('HGET', P .. hash, field) ~= value then return {} end
  end,
  idle = function(worker)
    if #leases_of(worker, 0, 1) > 0 then return {} end
  end,
}

-- The idempotency key of a job lives as long as the job.
local function remembered(record)
  return 'key:' .. (call('HGET', P .. record, 'key') or '')
end

-- A delivery is a hash, and is named by the outbox (by the time it is due), its endpoint (by its own time) and its job.
local function forget(delivery)
  local of = call('HMGET', P .. 'delivery:' .. delivery, 'endpoint', 'job_id')
  call('DEL', P .. 'delivery:' .. delivery)
  call('ZREM', P .. 'outbox', delivery)
  if of[1] then call('ZREM', P .. 'endpoint:' .. of[1] .. ':deliveries', delivery) end
  if of[2] then call('SREM', P .. 'job:' .. of[2] .. ':deliveries', delivery) end
end

local verbs = {
  grant = function(entry, token, worker, seconds)
    call('ZADD', P .. 'leases', now + tonumber(seconds), entry)
    call('HSET', P .. 'holders', entry, token .. '\t' .. worker)
  end,
  finish = function(entry)
    call('HDEL', P .. 'holders', entry)
    call('ZREM', P .. 'leases', entry)
  end,
  due = function(queue, kind, rank, entry, at)
    if tonumber(at) <= now + soon then
      make_ready(queue, kind, rank, entry)
    else
      call('ZADD', P .. 'due', at, rank .. '\t' .. queue .. '\t' .. kind .. '\t' .. entry)
    end
  end,
  back = function(queue, kind, rank, entry)
    if call('ZREM', P .. 'reserved', entry) == 1 then
      call('HDEL', P .. 'reservations', entry)
    elseif call('ZREM', P .. 'ready:' .. queue .. ':' .. kind, entry) == 0 then
      call('ZREM', P .. 'due', rank .. '\t' .. queue .. '\t' .. kind .. '\t' .. entry)
    end
  end,
  unreserve = function(entry)
    put_back(entry)
  end,
  release = function(slot, job)
    if call('GET', P .. slot) == job then call('DEL', P .. slot) end
  end,
  notify = function(delivery, endpoint, job, run, at)
    if call('SISMEMBER', P .. 'endpoints:open', endpoint) == 0 then return end
    call('HSET', P .. 'delivery:' .. delivery, 'endpoint', endpoint, 'job_id', job, 'run', run, 'at', at,
      'attempts', 0, 'next_at', at, 'error', '')
    call('ZADD', P .. 'outbox', at, delivery)
    call('ZADD', P .. 'endpoint:' .. endpoint .. ':deliveries', at, delivery)
    call('SADD', P .. 'job:' .. job .. ':deliveries', delivery)
  end,
  settle = function(delivery, attempts, next_at, error)
    if call('HGET', P .. 'delivery:' .. delivery, 'attempts') ~= attempts then return end
    if next_at == '' then return forget(delivery) end
    call('HSET', P .. 'delivery:' .. delivery, 'next_at', next_at, 'error', error)
    call('ZADD', P .. 'outbox', next_at, delivery)
  end,
  unsend = function(endpoint)
    for _, delivery in ipairs(call('ZRANGE', P .. 'endpoint:' .. endpoint .. ':deliveries', 0, -1)) do forget(delivery) end
  end,
  orphan = function(job)
    for _, delivery in ipairs(call('SMEMBERS', P .. 'job:' .. job .. ':deliveries')) do forget(delivery) end
    for _, token in ipairs(call('SMEMBERS', P .. 'job:' .. job .. ':keys')) do call('HDEL', P .. 'keys', token) end
    call('DEL', P .. 'job:' .. job .. ':keys')
  end,
  announce = announce,
  publish = function(job, message)
    call('PUBLISH', P .. 'progress:' .. job, message)
  end,
  count = function(what)
    counts[what] = (counts[what] or 0) + 1
  end,
  expire = function(seconds, record, ...)
    call('EXPIRE', P .. record, seconds)
    for _, key in ipairs({remembered(record), ...}) do call('EXPIRE', P .. key, seconds) end
  end,
  persist = function(record, ...)
    call('PERSIST', P .. record)
    for _, key in ipairs({remembered(record), ...}) do call('PERSIST', P .. key) end
  end,
}

local function refusal(job, version, plan, body, asked)
  for i, guard in ipairs(asked) do
    local facts = guards[guard[1]](unpack(guard, 2))
    if facts then return {guard[1], i, unpack(facts)} end
  end
  if version ~= '*' then
    local stored = call('HGET', P .. 'job:' .. job, 'version') or ''
    if stored ~= version then return {version == '' and 'exists already' or 'version'} end
  end
  if plan ~= '' and body == '' and call('HEXISTS', P .. 'plans', plan) == 0 then return {'plan'} end
end

local function make(plan, body, operations)
  if body ~= '' then call('HSET', P .. 'plans', plan, body) end
  for _, operation in ipairs(operations) do
    local verb = verbs[operation[1]]
    if verb then
      verb(unpack(operation, 2))
    else
      operation[2] = P .. operation[2]
      call(unpack(operation))
    end
  end
end

local outcomes, touched, behind, is_moved = {instant(now)}, {}, {}, false
for _, member in ipairs(cmsgpack.unpack(ARGV[3])) do
  local job, version = member[1], member[2]
  local outcome
  if version ~= '*' and behind[job] then
    outcome = {'behind'}
  else
    local is_sound, found = pcall(refusal, job, version, member[3], member[4], member[5])
    if not is_sound then
      outcome = {'unsound', tostring(type(found) == 'table' and found.err or found)}
    elseif found then
      outcome = found
    else
      local is_made, err = pcall(make, member[3], member[4], member[6])
      if not is_made then outcome = {'half', tostring(type(err) == 'table' and err.err or err)} end
      is_moved = true
      if version ~= '*' then touched[#touched + 1] = job end
    end
    if outcome and version ~= '*' then behind[job] = true end
  end
  outcomes[#outcomes + 1] = outcome or ''
end

if is_moved then tell(touched) end
for what, n in pairs(counts) do
  call('HINCRBY', P .. 'stats:jobs', what, n)
  call('HINCRBY', P .. 'stats:day:' .. day, what, n)
  call('EXPIRE', P .. 'stats:day:' .. day, 8 * 86400)
end
return outcomes
