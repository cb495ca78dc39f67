--[[
commit: make each member whole or not at all, in order.

  ARGV[1] now, or '' for the server's own time    ARGV[2] the day, for the statistics
  ARGV[3] members (msgpack) in one flat list, each: how many words it has with this one, job, version, plan, body, turn,
          guards, 0, effects. A guard and an effect is the number of its words, its name, and what it needs
    version      and lineage: what is stored must carry both; '' the job must not exist; '*' this is about no job's record
    plan, body   fingerprint that must be known, or is made known by the body; '' for none
    turn         '1' if the lifetime of the job's keys changes, else ''
    guards       see `guards`
    effects      what the change does, see effects.lua
  ARGV[4] whose work it is, if nobody who works through the same handle has to hear of it; else ''
  returns the time, then per member '' or {why, which guard, facts ...}

Everything is looked at before anything of a member is written, and the server itself refuses the whole script when it may not
write (out of memory, replica, failed AOF): that is what the `#!lua` in front of it is for. Behind a refused change of a
job its later ones are refused too.
]]
local day = ARGV[2]
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

local function common_guards()
  return {
    holds = function(entry, token)
      if not is_held('holders', entry, token) then return {} end
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
  }
end

local guards = common_guards()

local function rare_guards()
  return {
    overdue = function(entry, token)
      if not is_held('holders', entry, token) then return {} end
      if z_score('leases', entry) > now then return {} end
    end,
    waiting = function(ready, entry)
      if not z_score(ready, entry) then return {} end
    end,
    may_start = function(ready, entry)
      if not z_score(ready, entry) and not limits().may_start(entry) then return {} end
    end,
    within = function(uses)
      if limits().first_full(cjson.decode(uses)) then return {} end
    end,
    not_lowered = function(uses)
      if limits().is_lowered(cjson.decode(uses)) then return {} end
    end,
    reserved = function(entry, token)
      if not is_held('reservations', entry, token) then return {} end
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
      if records().stamp_of(kind, id) ~= tonumber(stamp) then return {} end
    end,
  }
end

local rare_ones

setmetatable(guards, {__index = function(_, name)
  rare_ones = rare_ones or rare_guards()
  return rare_ones[name]
end})

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
  make_effects(job, told, at + 1, ends)
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
for _, job in ipairs(handed) do touched[#touched + 1] = job end
if #made > 0 then tell(touched, ARGV[4]) end
for what, n in pairs(counts) do
  call('HINCRBY', P .. 'stats:jobs', what, n)
  if call('HINCRBY', P .. 'stats:day:' .. day, what, n) == n then call('EXPIRE', P .. 'stats:day:' .. day, 8 * 86400) end
end
return outcomes
