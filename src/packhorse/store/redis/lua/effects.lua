--[[
effects: what a change does, by name. It is put in front of `commit` and `claim`, behind record_lib.lua.

  ARGV[1] now, or '' for the server's own time

Each effect is given the job of its change, which is '' for what is about no job's record, and the words behind its name.
]]
local now = clock(ARGV[1])
local soon = ARGV[1] == '' and 0.05 or 0  -- callers only guess the server's time: what is due now may look as if it were not
local counts = {}  -- of jobs, for the statistics

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

-- The index that names every job once, by status.
local WHOLE = {pending = 'active', running = 'active', completed = 'completed', failed = 'failed', cancelled = 'cancelled'}

local effects, make_effects
local handed = {}  -- jobs that have been handed a slot

-- Those of nearly every job. The others are made when a script needs one: making all of them took each script 6 us.
local function common_effects()
  return {
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
    -- Its tasks in queues and their leases.
    due = function(_, queue, kind, rank, entry, at, queued_at)
      if tonumber(at) <= now + soon then
        make_ready(queue, kind, rank, entry)
      else
        put(zsets, 'due', rank .. '\t' .. queue .. '\t' .. kind .. '\t' .. entry, tonumber(at))
        put(zsets, 'queued', entry, tonumber(queued_at))
      end
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
      if call('EXISTS', P .. slot .. ':line') == 1 then
        effects.leave_line(job, slot)
      elseif call('GET', P .. slot) == job then
        call('DEL', P .. slot)
      end
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
    events = function(job, ...)
      call('RPUSH', P .. 'events:' .. job, ...)
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
  }
end

effects = common_effects()

local function rare_effects()
  local records = records()

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

  return {
    leave = function(_, member, ...)
      for i = 1, select('#', ...) do put(zsets, (select(i, ...)), member, false) end
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
    -- The same of tasks that have limits, or take turns.
    due_limited = function(_, queue, kind, place, entry, at, queued_at, uses)
      if tonumber(at) <= now + soon then
        limits().make_due(queue, kind, place, entry, cjson.decode(uses))
      else
        local delayed = tonumber(place) and 'due' or 'due:shared'
        put(zsets, delayed, table.concat({place, queue, kind, entry}, '\t'), tonumber(at))
        put(zsets, 'queued', entry, tonumber(queued_at))
      end
    end,
    take_limited = function(_, queue, kind, place, entry)
      limits().leave(queue, kind, place, entry)
    end,
    back_limited = function(_, queue, kind, place, entry, uses)
      local held = limits().leave(queue, kind, place, entry)
      if held then limits().let_go(entry, held) else limits().wake_all(cjson.decode(uses)) end
    end,
    drop = function(_, queue, kind, rank, entry)
      local held = limits().leave(queue, kind, rank, entry)
      if held then limits().let_go(entry, held) else limits().look_at_all() end
    end,
    grant_limited = function(_, entry, token, worker, seconds, uses, queue, place)
      effects.grant(_, entry, token, worker, seconds)
      limits().count(entry, cjson.decode(uses), token)
      limits().pay(queue, entry, place)
    end,
    finish_limited = function(_, entry, uses)
      effects.finish(_, entry)
      limits().let_go(entry, cjson.decode(uses))
    end,
    limit = function(_, name, most)
      limits().set(name, most)
    end,
    trim_limit = function(_, key)
      limits().trim(key)
    end,
    unreserve = function(_, entry)
      put_back(entry)
    end,
    use = function(_, key, jobs, bytes)
      if jobs ~= '0' then call('HINCRBY', P .. key, 'jobs', jobs) end
      if bytes ~= '0' then call('HINCRBY', P .. key, 'bytes', bytes) end
    end,
    remember = function(job, key, fingerprint)
      call('SET', P .. key, job .. ' ' .. fingerprint)
    end,
    hide_stage = function(job, stage)
      call('DEL', P .. 'job:' .. job .. ':stage:' .. stage)
    end,
    drop_tasks = function(job, ...)
      call('HDEL', P .. 'result:' .. job, ...)
      call('HDEL', P .. 'output:' .. job, ...)
      call('HDEL', P .. 'job:' .. job .. ':progress', ...)
    end,
    changed = function(job, id)
      call('RPUSH', P .. 'changes:' .. job, id)
      if beside then beside[5] = '1' end
    end,
    persist = function(job, ...)
      each_key(function(key) call('PERSIST', key) end, job, ...)
    end,
    erase = function(job, ...)
      records.drop_records_of(job)
      for i = 1, select('#', ...) do call('DEL', P .. select(i, ...)) end
    end,
    orphan = function(_, job)
      records.drop_records_of(job)
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
      if value then records.put_record('failure_action', alert, value, '', 'alert', at, '0', '') end
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
      if stamp ~= '' and records.stamp_of(kind, id) ~= tonumber(stamp) then return end
      if needs_kind ~= '' and records.stamp_of(needs_kind, needs_id) == 0 then return end
      if job ~= '' and call('EXISTS', P .. 'job:' .. job) == 0 then return end
      records.put_record(kind, id, body, index, lane, due, attempts, job)
    end,
    note_record = function(_, ...)
      records.note_record(...)
    end,
    drop_record = function(_, ...)
      records.drop_record(...)
    end,
    -- The line of a slot. The words of what a job makes due are JSON; behind another job they wait with it.
    join_line = function(job, slot, due)
      local holder = call('GET', P .. slot)
      if holder and holder ~= job then
        local last = call('ZRANGE', P .. slot .. ':line', -1, -1, 'WITHSCORES')
        call('ZADD', P .. slot .. ':line', tonumber(last[2] or 0) + 1, job)
        call('HSET', P .. slot .. ':due', job, due)
      else
        local words = cjson.decode(due)
        call('SET', P .. slot, job)
        make_effects(job, words, 1, #words + 1)
      end
    end,
    leave_line = function(job, slot)
      local line, due = P .. slot .. ':line', P .. slot .. ':due'
      local gone, kept = job, false
      if call('GET', P .. slot) == job then
        gone = call('ZRANGE', line, 0, 0)[1]
        call('SET', P .. slot, gone)
        kept = call('HGET', due, gone)
        handed[#handed + 1] = gone
      end
      call('ZREM', line, gone)
      call('HDEL', due, gone)
      local is_read, words = pcall(cjson.decode, kept or '[]')
      if is_read then make_effects(gone, words, 1, #words + 1) end
    end,
    -- Plans, samples, statistics and the feed.
    template = function(_, name, body)
      call('HSET', P .. 'starts', name, body)
    end,
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
end

local rare

setmetatable(effects, {__index = function(_, name)
  rare = rare or rare_effects()
  return rare[name]
end})

-- Make the effects that are told from one place on, each behind the number of its words.
function make_effects(job, told, at, ends)
  while at < ends do
    local last = at + told[at]
    effects[told[at + 1]](job, unpack(told, at + 2, last))
    at = last + 1
  end
end
