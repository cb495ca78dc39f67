--[[
commit: make each member whole or not at all, in order.

  ARGV[1] now, or '' for the server's own time    ARGV[2] the day, for the statistics
  ARGV[3] members (msgpack) in one flat list, each: how many words it has with this one, job, version, plan, body, turn,
          guards, 0, effects. A guard and an effect is the number of its words, its name, and what it needs
    version      and lineage: what is stored must carry both; '' the job must not exist; '*' this is about no job's record
    plan, body   fingerprint that must be known, or is made known by the body; '' for none
    turn         '1' if the lifetime of the job's keys changes, else ''
    guards       see `guards`
    effects      see `effects`: what a change does, by name
  ARGV[4] whose work it is, if nobody who works through the same handle has to hear of it; else ''
  returns the time, then per member '' or {why, which guard, facts ...}

Everything is looked at before anything of a member is written, and the server itself refuses the whole script when it may not
write (out of memory, replica, failed AOF): that is what the `#!lua` in front of it is for. Behind a refused change of a
job its later ones are refused too.
]]
local now, day = clock(ARGV[1]), ARGV[2]
local soon = ARGV[1] == '' and 0.05 or 0  -- callers only guess the server's time: what is due now may look as if it were not
local counts = {}
local is_promoted = false
local heads = {}  -- by queue and kind, the most urgent of what the server has

-- The first of a queue and kind, as {rank, entry}; what this script has put there is written before it is looked at.
local function head_of(ready)
  if zsets[ready] then
    flush_z(ready)
    heads[ready] = nil
  end
  if heads[ready] == nil then
    local head = call('ZRANGE', P .. ready, 0, 0, 'WITHSCORES')
    heads[ready] = head[1] and {tonumber(head[2]), head[1]} or false
  end
  return heads[ready]
end

local guards = {
  holds = function(entry, token)
    if not is_held('holders', entry, token) then return {} end
  end,
  overdue = function(entry, token)
    if not is_held('holders', entry, token) then return {} end
    if z_score('leases', entry) > now then return {} end
  end,
  waiting = function(ready, entry)
    if not z_score(ready, entry) then return {} end
  end,
  reserved = function(entry, token)
    if not is_held('reservations', entry, token) then return {} end
  end,
  foremost = function(queue, rank, job, ...)
    if not is_promoted then promote(now, 100) end
    is_promoted = true
    rank = tonumber(rank)
    for _, kind in ipairs({...}) do
      local head = head_of('ready:' .. queue .. ':' .. kind)
      if head and (head[1] < rank or (head[1] == rank and job_of(head[2]) < job)) then return {} end
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
  failure = function(id, status)
    local found = call('HGET', P .. 'failures', id)
    if not found or string.match(found, '^[^\t]*') ~= status then return {} end
  end,
  room = function(key, most_jobs, most_bytes, bytes)
    local used = call('HMGET', P .. key, 'jobs', 'bytes')
    local jobs, kept = tonumber(used[1] or 0), tonumber(used[2] or 0)
    most_jobs, most_bytes = tonumber(most_jobs), tonumber(most_bytes)
    if most_jobs > 0 and jobs + 1 > most_jobs or most_bytes > 0 and kept + tonumber(bytes) > most_bytes then
      return {used[1] or '0', used[2] or '0'}
    end
  end,
  record_is = function(kind, id, stamp)
    if stamp_of(kind, id) ~= tonumber(stamp) then return {} end
  end,
}

-- Further keys of a job, by the field of its record that says they are there. Its idempotency key lives as long as it.
local NAMED = {'key:', 'log:', 'job:', 'output:', 'changes:'}
local beside  -- of a member whose keys get another lifetime: what these fields say

local function each_key(act, job, has_result, ...)
  act(P .. 'job:' .. job)
  act(P .. 'events:' .. job)
  if has_result ~= '' then act(P .. 'result:' .. job) end
  for i = 1, select('#', ...) do act(P .. 'job:' .. job .. ':stage:' .. select(i, ...)) end
  for i, name in ipairs(NAMED) do
    local value = beside[i]
    if value and value ~= '' then act(P .. name .. (i == 1 and value or job) .. (i == 3 and ':progress' or '')) end
  end
end

-- A failure's parts: status, whether its user is counted, its group, what became of it, and the failure itself.
local function failure_of(id)
  return string.match(call('HGET', P .. 'failures', id) or '', '^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$')
end

local function move_failure(id, to, settled)
  local status, counted, group, before, body = failure_of(id)
  if not status then return end
  if settled == '' then settled = before end
  call('HSET', P .. 'failures', id, table.concat({to, counted, group, settled, body}, '\t'))
  call('HINCRBY', P .. 'failures:group:' .. group, status, -1)
  call('HINCRBY', P .. 'failures:group:' .. group, to, 1)
end

local function tenant_of(group)
  return string.match(group, '^[^/]*')
end

-- The index that names every job once, by status.
local WHOLE = {pending = 'active', running = 'active', completed = 'completed', failed = 'failed', cancelled = 'cancelled'}

-- What a change does. Each is given the job of its member, which is '' for what is about no job's record.
local effects = {
  -- The record of the job.
  create = function(job, user, pair, ...)
    call('HSET', P .. 'job:' .. job, ...)
    put(zsets, user, job, 0)
    put(zsets, 'jobs:pairs', pair, 0)
    counts.submitted = (counts.submitted or 0) + 1
  end,
  write = function(job, version, lineage, updated_at, state, ...)
    call('HSET', P .. 'job:' .. job, 'version', version, 'lineage', lineage, 'updated_at', updated_at, 'state', state, ...)
  end,
  clear = function(job, ...)
    call('HDEL', P .. 'job:' .. job, ...)
  end,
  -- Its indexes: those of its status, and one by name, '' to leave it.
  move = function(job, from, to, pair)
    local was, now_in = WHOLE[from], WHOLE[to]
    if was ~= now_in then
      if was then
        put(zsets, 'jobs:' .. was, job, false)
        put(zsets, 'jobs:' .. was .. ':' .. pair, job, false)
      end
      put(zsets, 'jobs:' .. now_in, job, 0)
      put(zsets, 'jobs:' .. now_in .. ':' .. pair, job, 0)
    end
    if to == 'running' then put(zsets, 'jobs:running', job, 0) end
    if from == 'running' then put(zsets, 'jobs:running', job, false) end
  end,
  place = function(job, index, score)
    put(zsets, index, job, tonumber(score) or false)
  end,
  leave = function(_, member, ...)
    for i = 1, select('#', ...) do put(zsets, (select(i, ...)), member, false) end
  end,
  -- Its tasks in queues and their leases.
  due = function(_, queue, kind, rank, entry, at, queued_at)
    if tonumber(at) <= now + soon then
      make_ready(queue, kind, rank, entry)
    else
      put(zsets, 'due', rank .. '\t' .. queue .. '\t' .. kind .. '\t' .. entry, tonumber(at))
      put(zsets, 'queued', entry, tonumber(queued_at))
    end
  end,
  back = function(_, queue, kind, rank, entry)
    if h_get('reservations', entry) then
      put(zsets, 'reserved', entry, false)
      put(hashes, 'reservations', entry, false)
    else
      put(zsets, 'ready:' .. queue .. ':' .. kind, entry, false)
      put(zsets, 'due', rank .. '\t' .. queue .. '\t' .. kind .. '\t' .. entry, false)
      put(zsets, 'queued', entry, false)
    end
  end,
  unreserve = function(_, entry)
    put_back(entry)
  end,
  grant = function(_, entry, token, worker, seconds)
    put(zsets, 'leases', entry, now + tonumber(seconds))
    put(hashes, 'holders', entry, token .. '\t' .. worker)
  end,
  finish = function(_, entry)
    put(hashes, 'holders', entry, false)
    put(zsets, 'leases', entry, false)
  end,
  -- What it holds of its user and tenant.
  take_slot = function(job, slot)
    call('SET', P .. slot, job)
  end,
  release = function(job, slot)
    if call('GET', P .. slot) == job then call('DEL', P .. slot) end
  end,
  use = function(_, key, jobs, bytes)
    if jobs ~= '0' then call('HINCRBY', P .. key, 'jobs', jobs) end
    if bytes ~= '0' then call('HINCRBY', P .. key, 'bytes', bytes) end
  end,
  remember = function(job, key, fingerprint)
    call('SET', P .. key, job .. ' ' .. fingerprint)
  end,
  -- What is kept beside the record, and shown.
  result = function(job, task, body, places)
    call('HSET', P .. 'result:' .. job, task, body)
    if places then
      call('HSET', P .. 'output:' .. job, task, places)
      if beside then beside[4] = '1' end
    end
  end,
  stage = function(job, stage, ...)
    call('HSET', P .. 'job:' .. job .. ':stage:' .. stage, ...)
  end,
  hide_stage = function(job, stage)
    call('DEL', P .. 'job:' .. job .. ':stage:' .. stage)
  end,
  drop_tasks = function(job, ...)
    call('HDEL', P .. 'result:' .. job, ...)
    call('HDEL', P .. 'output:' .. job, ...)
    call('HDEL', P .. 'job:' .. job .. ':progress', ...)
  end,
  events = function(job, ...)
    call('RPUSH', P .. 'events:' .. job, ...)
  end,
  changed = function(job, id)
    call('RPUSH', P .. 'changes:' .. job, id)
    if beside then beside[5] = '1' end
  end,
  announce = announce,
  publish = function(job, message)
    call('PUBLISH', P .. 'progress:' .. job, message)
  end,
  -- The end of a run, and how long the keys of an ended job last.
  ended = function(job, status, pipeline, duration, seconds)
    counts[status] = (counts[status] or 0) + 1
    if duration ~= '' then call('SET', P .. 'metrics:' .. job .. ':duration', duration, 'EX', seconds) end
    tell_outside('queue:done', '{"job_id":"' .. job .. '","status":"' .. status .. '","pipeline":' .. pipeline .. '}')
  end,
  expire = function(job, seconds, ...)
    each_key(function(key) call('EXPIRE', key, seconds) end, job, ...)
  end,
  persist = function(job, ...)
    each_key(function(key) call('PERSIST', key) end, job, ...)
  end,
  erase = function(job, ...)
    drop_records_of(job)
    for i = 1, select('#', ...) do call('DEL', P .. select(i, ...)) end
  end,
  orphan = function(_, job)
    drop_records_of(job)
  end,
  -- Failures.
  fail = function(job, id, group, user, most, at, seen, body, alert_new, alert_again, alert, ...)
    local key, users, tenant = P .. 'failures:group:' .. group, P .. 'failures:users:' .. group, tenant_of(group)
    local known = call('HMGET', key, 'seen', 'dismissal', 'last_seen', 'first_seen')
    local value = alert_new
    if not known[1] then
      call('HSET', key, 'last_seen', at, 'seen', seen, ...)
      call('ZADD', P .. 'failures:groups:' .. tenant, 0, seen)
    else
      value = known[2] and known[2] ~= '' and alert_again
      if value then call('HSET', key, 'dismissal', '', 'seen_again', at) end
      if tonumber(known[4]) > tonumber(at) then call('HSET', key, 'first_seen', at) end
      if tonumber(known[3]) < tonumber(at) then
        call('HSET', key, 'last_seen', at, 'seen', seen)
        call('ZREM', P .. 'failures:groups:' .. tenant, known[1])
        call('ZADD', P .. 'failures:groups:' .. tenant, 0, seen)
      end
    end
    local counted = '0'
    if call('HEXISTS', users, user) == 1 or call('HLEN', users) < tonumber(most) then
      counted = '1'
      call('HINCRBY', users, user, 1)
    else
      call('HINCRBY', key, 'unlisted', 1)
    end
    call('HINCRBY', key, 'open', 1)
    call('HSET', P .. 'failures', id, table.concat({'open', counted, group, '', body}, '\t'))
    call('ZADD', P .. 'failures:of:' .. group, 0, id)
    call('ZADD', P .. 'failures:of:' .. tenant, 0, id)
    call('SADD', P .. 'failures:tenants', tenant)
    call('HSET', P .. 'job:' .. job, 'failures', (call('HGET', P .. 'job:' .. job, 'failures') or '') .. id .. ' ')
    if value then put_record('failure_action', alert, value, '', 'alert', at, '0', '') end
  end,
  settle_failures = function(job, was, to, settled)
    for id in string.gmatch(call('HGET', P .. 'job:' .. job, 'failures') or '', '%S+') do
      if failure_of(id) == was then move_failure(id, to, settled) end
    end
  end,
  move_failure = function(_, id, to, settled)
    move_failure(id, to, settled)
  end,
  forget_failure = function(_, id)
    local status, counted, group, _, body = failure_of(id)
    if not status then return end
    local key, users, tenant = P .. 'failures:group:' .. group, P .. 'failures:users:' .. group, tenant_of(group)
    call('HDEL', P .. 'failures', id)
    call('ZREM', P .. 'failures:of:' .. group, id)
    call('ZREM', P .. 'failures:of:' .. tenant, id)
    call('HINCRBY', key, status, -1)
    if counted == '1' then
      local user = cjson.decode(body).user
      if call('HINCRBY', users, user, -1) <= 0 then call('HDEL', users, user) end
    else
      call('HINCRBY', key, 'unlisted', -1)
    end
    if call('ZCARD', P .. 'failures:of:' .. group) == 0 then
      call('ZREM', P .. 'failures:groups:' .. tenant, call('HGET', key, 'seen') or '')
      call('DEL', key, users)
      if call('ZCARD', P .. 'failures:of:' .. tenant) == 0 then call('SREM', P .. 'failures:tenants', tenant) end
    end
  end,
  dismiss_group = function(_, key, settled)
    call('HSET', P .. key, 'dismissal', settled)
  end,
  -- Records. One is left out where its stamp, its job or the record it needs is not there: the rest of the change is made.
  put_record = function(_, kind, id, stamp, body, index, lane, due, attempts, job, needs_kind, needs_id)
    if stamp ~= '' and stamp_of(kind, id) ~= tonumber(stamp) then return end
    if needs_kind ~= '' and stamp_of(needs_kind, needs_id) == 0 then return end
    if job ~= '' and call('EXISTS', P .. 'job:' .. job) == 0 then return end
    put_record(kind, id, body, index, lane, due, attempts, job)
  end,
  note_record = function(_, ...)
    note_record(...)
  end,
  drop_record = function(_, ...)
    drop_record(...)
  end,
  -- Plans, samples, statistics and the feed.
  kinds = function(_, ...)
    for i = 1, select('#', ...), 2 do
      local queue, kind = select(i, ...)
      call('SADD', P .. 'kinds:' .. queue, kind)
    end
  end,
  sample = function(_, key, keep, seconds, ...)
    call('ZADD', P .. key, ...)
    call('ZREMRANGEBYRANK', P .. key, 0, -tonumber(keep) - 1)
    call('EXPIRE', P .. key, seconds)
  end,
  tally = function(_, key, seconds, ...)
    for i = 1, select('#', ...), 2 do
      local name, count = select(i, ...)
      call('HINCRBY', P .. key, name, count)
    end
    call('EXPIRE', P .. key, seconds)
  end,
  trim_feed = function(_, entries)
    call('XTRIM', P .. 'feed', 'MAXLEN', '~', entries)
  end,
}

local told = cmsgpack.unpack(ARGV[3])
local plans = {}  -- that the server is known to have

local function refusal(at)
  local job, version, plan, body, turn = unpack(told, at + 1, at + 5)
  at = at + 6
  local n = 0
  while told[at] > 0 do
    local last = at + told[at]
    local facts = guards[told[at + 1]](unpack(told, at + 2, last))
    n = n + 1
    if facts then return {told[at + 1], n, unpack(facts)} end
    at = last + 1
  end
  if version ~= '*' then
    local stored
    if turn == '' then
      stored = call('HMGET', P .. 'job:' .. job, 'version', 'lineage')
    else
      stored = call('HMGET', P .. 'job:' .. job, 'version', 'lineage', 'key', 'log_last', 'has_progress', 'has_output', 'has_changes')
      beside = {unpack(stored, 3, 7)}
    end
    local carried = stored[1] and stored[1] .. ' ' .. (stored[2] or '0') or ''
    if carried ~= version then return {version == '' and 'exists already' or 'version'} end
  end
  if plan ~= '' and body == '' and not plans[plan] then
    if call('HEXISTS', P .. 'plans', plan) == 0 then return {'plan'} end
    plans[plan] = true
  end
end

local function make(at, ends)
  local job, plan, body = told[at + 1], told[at + 3], told[at + 4]
  if body ~= '' then
    call('HSET', P .. 'plans', plan, body)
    plans[plan] = true
  end
  at = at + 6
  while told[at] > 0 do at = at + told[at] + 1 end
  at = at + 1
  while at < ends do
    local last = at + told[at]
    effects[told[at + 1]](job, unpack(told, at + 2, last))
    at = last + 1
  end
end

-- One question for all tokens that the guards of these members are about.
local function learn()
  local asked, at = {holds = {}, reserved = {}}, 1
  while at <= #told do
    local guard = at + 6
    while told[guard] > 0 do
      local name = told[guard + 1]
      local of = asked[name == 'overdue' and 'holds' or name]
      if of then of[#of + 1] = told[guard + 2] end
      guard = guard + told[guard] + 1
    end
    at = at + told[at]
  end
  h_learn('holders', asked.holds)
  h_learn('reservations', asked.reserved)
end

local function reason(err)
  return tostring(type(err) == 'table' and err.err or err)
end

local outcomes, touched, behind, made = {instant(now)}, {}, {}, {}
pcall(learn)  -- what cannot be read is found out by the guard it concerns
local at = 1
while at <= #told do
  local from, job, version = at, told[at + 1], told[at + 2]
  at = at + told[at]
  local outcome
  if version ~= '*' and behind[job] then
    outcome = {'behind'}
  else
    beside = nil
    local is_sound, found = pcall(refusal, from)
    if not is_sound then
      outcome = {'unsound', reason(found)}
    elseif found then
      outcome = found
    else
      local is_made, err = pcall(make, from, at)
      if not is_made then outcome = {'half', reason(err)} end
      made[#made + 1] = #outcomes + 1
      if version ~= '*' then touched[#touched + 1] = job end
    end
    if outcome and version ~= '*' then behind[job] = true end
  end
  outcomes[#outcomes + 1] = outcome or ''
end

local is_flushed, err = pcall(flush)
if not is_flushed then
  for _, n in ipairs(made) do outcomes[n] = {'half', reason(err)} end
end
if #made > 0 then tell(touched, ARGV[4]) end
for what, n in pairs(counts) do
  call('HINCRBY', P .. 'stats:jobs', what, n)
  call('HINCRBY', P .. 'stats:day:' .. day, what, n)
  call('EXPIRE', P .. 'stats:day:' .. day, 8 * 86400)
end
return outcomes
