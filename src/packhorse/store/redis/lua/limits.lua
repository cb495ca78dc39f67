--[[
limits: what is counted under limits, where tasks wait that may not start, and whose turn it is. It is put in front of `commit` and
`claim`, behind effects.lua, and costs a script nothing until it is needed. A task without limits and turns has none of these keys.

  limits                  hash: what operators have set, by the name of a limit
  limits:keys             sorted set of the keys of limits that are in use, all at score 0
  limits:holds:{key}      sorted set of entries that run, or are being claimed, under the key, by since when
  limits:starts:{key}     sorted set of "entry TAB token" that a rate counts, by when; 1e15, and no token, while it is being claimed
  limits:wakes            sorted set of keys, by when what is parked under them is to be looked at
  limits:reserved         hash: of an entry that is being claimed, "place TAB uses"
  waiting                 hash: where an entry is parked or takes turns: "base TAB most TAB queue TAB kind TAB cost TAB share"
  parked:{key}, turns:{queue}      (a base) set of its groups, "most TAB queue TAB kind": tasks that may start or wait together
  {base}:lanes:{group}             sorted set of its shares, by pass: when their next start ends in virtual time
  {base}:tasks:{group} TAB {share} sorted set of entries by rank
  {base}:passes:{queue}            sorted set of shares without tasks that are ahead of the queue's time, by pass
  {base}:time                      hash: virtual time by queue
  due:shared              sorted set like `due`, of tasks that take turns

A place is the rank of a task, or "rank cost share" if it takes turns. Uses are JSON: a list of {name, key, most, window}.
]]
local function limit_library()
  local LONGEST, WAKES, WOKEN = 3600, 100, 1000
  local CLAIMING = '1e15'  -- the time of a start that is not made yet: it counts until it is, or is given up
  local NOW = string.format('%.17g', now)
  local WINDOWS = {per_second = 1, per_minute = 60, per_hour = 3600}
  local in_force = {}  -- by name, what the operator has set; false for nothing
  local prepaid = {}   -- entries whose reservation has paid for the turn
  local made = {}

  local function value(name, most)
    if in_force[name] == nil then in_force[name] = tonumber(call('HGET', P .. 'limits', name) or nil) or false end
    return in_force[name] or most
  end

  local function name_of(key) return string.match(key, '^[^=]*') end

  local function window_of(key) return WINDOWS[string.match(name_of(key), '[^.]*$')] or 0 end

  local function holds(key) return P .. 'limits:holds:' .. key end
  local function starts(key) return P .. 'limits:starts:' .. key end
  local function parked(key) return 'parked:' .. key end

  -- How many are counted, with those that are being claimed. Starts in the future were left by a wrong clock.
  local function used(key, window)
    if window == 0 then return call('ZCARD', holds(key)) end
    for _, late in ipairs(call('ZRANGEBYSCORE', starts(key), '(' .. NOW, '(' .. CLAIMING)) do
      call('ZADD', starts(key), NOW, late)
    end
    return call('ZCOUNT', starts(key), string.format('%.17g', now - window), '+inf')
  end

  local function oldest(key, window)
    local found = call('ZRANGEBYSCORE', starts(key), string.format('%.17g', now - window), '(' .. CLAIMING, 'WITHSCORES', 'LIMIT', 0, 1)
    return tonumber(found[2])
  end

  function made.first_full(uses, entry)
    for _, use in ipairs(uses) do
      local most = value(use[1], use[3])
      if most <= used(use[2], use[4]) then
        local key, member = starts(use[2]), entry and entry .. '\t'
        if use[4] == 0 then key, member = holds(use[2]), entry end
        local is_own = entry and call('ZREM', key, member) == 1
        if not is_own or most <= used(use[2], use[4]) then return use end
      end
    end
  end

  -- A task that is being claimed was counted by the number of its plan, but an operator may have said another since.
  function made.is_lowered(uses)
    for _, use in ipairs(uses) do
      local most = value(use[1])
      if most and most < used(use[2], use[4]) then return true end
    end
  end

  local function forget_if_unused(key)
    local base = P .. parked(key)
    if call('EXISTS', holds(key), starts(key), base) > 0 then return end
    call('ZREM', P .. 'limits:keys', key)
    for _, queue in ipairs(call('HKEYS', base .. ':time')) do call('DEL', base .. ':passes:' .. queue) end
    call('DEL', base .. ':time')
  end

  local function wake_at(key, at)
    call('ZADD', P .. 'limits:wakes', 'LT', string.format('%.17g', at), key)
  end

  local function plan_wake(full)
    local first = full[4] > 0 and oldest(full[2], full[4])
    if first then wake_at(full[2], first + full[4]) end  -- none if an operator has said 0
  end

  -- Turns: lanes of shares in virtual time.

  local function lanes_of(base, group) return P .. base .. ':lanes:' .. group end
  local function tasks_of(base, group, share) return P .. base .. ':tasks:' .. group .. '\t' .. share end

  local function groups_of(base, queue)
    local found = {}
    for _, group in ipairs(call('SMEMBERS', P .. base)) do
      if queue == nil or string.match(group, '\t([^\t]*)') == queue then found[#found + 1] = group end
    end
    table.sort(found)
    return found
  end

  local function time_of(base, queue) return tonumber(call('HGET', P .. base .. ':time', queue) or 0) end

  -- The pass of a share that has tasks; nothing if it has none.
  local function active_pass(base, queue, share)
    for _, group in ipairs(groups_of(base, queue)) do
      local pass = call('ZSCORE', lanes_of(base, group), share)
      if pass then return tonumber(pass) end
    end
  end

  -- Of one that was idle: it begins at the time of the queue, so that idling earns no credit.
  local function first_pass(base, queue, share, cost)
    local begin, passes = time_of(base, queue) + cost, P .. base .. ':passes:' .. queue
    local debt = tonumber(call('ZSCORE', passes, share) or nil)
    return debt and debt > begin and debt or begin
  end

  -- The share has used its turn.
  local function charge(base, queue, share, cost)
    local passes, pass = P .. base .. ':passes:' .. queue, active_pass(base, queue, share)
    local spent = pass or tonumber(call('ZSCORE', passes, share) or nil) or time_of(base, queue) + cost
    local time = string.format('%.17g', math.max(time_of(base, queue), spent))
    call('HSET', P .. base .. ':time', queue, time)
    local after = string.format('%.17g', spent + cost)
    if pass then
      for _, group in ipairs(groups_of(base, queue)) do call('ZADD', lanes_of(base, group), 'XX', after, share) end
    else
      call('ZADD', passes, after, share)
    end
    call('ZREMRANGEBYSCORE', passes, '-inf', time)  -- these would begin at the time of the queue, too
  end

  -- Waiting: parked, or taking turns.

  local function split(place)
    local rank, cost, share = string.match(place, '^(%S+) (%S+) (%S+)$')
    return rank or place, cost or '0', share or ''
  end

  local function add(base, most, queue, kind, place, entry)
    local rank, cost, share = split(place)
    local group = string.format('%.0f', most) .. '\t' .. queue .. '\t' .. kind
    local lanes = lanes_of(base, group)
    if not call('ZSCORE', lanes, share) then
      local pass = share == '' and 0 or active_pass(base, queue, share)
      if not pass then
        pass = first_pass(base, queue, share, tonumber(cost))
        call('ZREM', P .. base .. ':passes:' .. queue, share)
      end
      call('SADD', P .. base, group)
      call('ZADD', lanes, string.format('%.17g', pass), share)
    end
    call('ZADD', tasks_of(base, group, share), rank, entry)
    call('HSET', P .. 'waiting', entry, table.concat({base, group, cost, share}, '\t'))
  end

  -- Take an entry from where it waits; its base, and its queue, kind and place. Nothing if it does not wait.
  local function remove(entry)
    local found = call('HGET', P .. 'waiting', entry)
    if not found then return end
    local base, most, queue, kind, cost, share = string.match(found, '^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$')
    local group = most .. '\t' .. queue .. '\t' .. kind
    local tasks, lanes = tasks_of(base, group, share), lanes_of(base, group)
    local rank = call('ZSCORE', tasks, entry) or '0'
    call('HDEL', P .. 'waiting', entry)
    call('ZREM', tasks, entry)
    if call('EXISTS', tasks) == 0 then
      local pass = call('ZSCORE', lanes, share)
      call('ZREM', lanes, share)
      if call('EXISTS', lanes) == 0 then call('SREM', P .. base, group) end
      if share ~= '' and pass and tonumber(pass) > time_of(base, queue) and not active_pass(base, queue, share) then
        call('ZADD', P .. base .. ':passes:' .. queue, pass, share)
        call('HSETNX', P .. base .. ':time', queue, 0)
      end
    end
    local key = string.match(base, '^parked:(.*)$')
    if key then forget_if_unused(key) end
    return base, queue, kind, share == '' and rank or rank .. ' ' .. cost .. ' ' .. share
  end

  function made.make_turn(queue, kind, place, entry)
    add('turns:' .. queue, 0, queue, kind, place, entry)
  end

  local function wait_for(full, queue, kind, place, entry)
    call('ZADD', P .. 'limits:keys', 0, full[2])
    add(parked(full[2]), full[3], queue, kind, place, entry)
    plan_wake(full)
  end

  local function wake_first(base, group)
    local share = call('ZRANGE', lanes_of(base, group), 0, 0)[1]
    local entry = share and call('ZRANGE', tasks_of(base, group, share), 0, 0)[1]
    if not entry then return false end
    local cost = tonumber(string.match(call('HGET', P .. 'waiting', entry) or '', '([^\t]*)\t[^\t]*$') or 0)
    if share ~= '' then charge(base, string.match(group, '\t([^\t]*)'), share, cost) end
    local _, queue, kind, place = remove(entry)
    make_ready(queue, kind, place, entry)
    return true
  end

  -- Make ready, for each group, so many of the tasks parked under the key as there is room for; how many that were of the
  -- largest. Which of the groups can use the room is not known here.
  local function wake(key, most)
    local base, largest, count = parked(key), 0, nil
    for _, group in ipairs(groups_of(base)) do
      count = count or used(key, window_of(key))
      local room, woken = math.min(most, value(name_of(key), tonumber(string.match(group, '^[^\t]*'))) - count), 0
      while woken < room and wake_first(base, group) do woken = woken + 1 end
      largest = math.max(largest, woken)
    end
    return largest
  end

  function made.make_due(queue, kind, place, entry, uses)
    local full = made.first_full(uses, entry)
    if full then wait_for(full, queue, kind, place, entry) else make_ready(queue, kind, place, entry) end
  end

  -- A task that was ready may not start. Whatever waits for its other limits gets the room that was meant for it.
  function made.park(queue, kind, place, entry, uses, full)
    remove(entry)
    wait_for(full, queue, kind, place, entry)
    for _, use in ipairs(uses) do
      if use[2] ~= full[2] then wake(use[2], 1) end
    end
  end

  function made.count(entry, uses, token)
    for _, use in ipairs(uses) do
      local key, window = use[2], use[4]
      call('ZADD', P .. 'limits:keys', 0, key)
      if window == 0 then
        call('ZADD', holds(key), NOW, entry)
      else
        if token ~= '' then call('ZREM', starts(key), entry .. '\t') end
        call('ZADD', starts(key), token == '' and CLAIMING or NOW, entry .. '\t' .. token)
        call('ZREMRANGEBYSCORE', starts(key), '-inf', '(' .. string.format('%.17g', now - window))
        if call('EXISTS', P .. parked(key)) == 1 then wake_at(key, now + window) end
      end
    end
  end

  -- The lease has ended, or whoever was claiming the entry did not start it: what it held is free.
  function made.let_go(entry, uses)
    for _, use in ipairs(uses) do
      if use[4] == 0 then call('ZREM', holds(use[2]), entry) else call('ZREM', starts(use[2]), entry .. '\t') end
    end
    made.wake_all(uses)
  end

  function made.wake_all(uses)
    for _, use in ipairs(uses) do
      wake(use[2], 1)
      forget_if_unused(use[2])
    end
  end

  -- Claims.

  -- The entry is being claimed: it counts from now on, and its share has had its turn.
  function made.reserve(queue, place, entry, uses_text, uses)
    local _, cost, share = split(place)
    made.count(entry, uses, '')
    if share ~= '' then
      charge('turns:' .. queue, queue, share, tonumber(cost))
      remove(entry)
    end
    call('HSET', P .. 'limits:reserved', entry, place .. '\t' .. uses_text)
  end

  -- What was kept of an entry that was being claimed: its place and its uses.
  function made.end_reservation(entry)
    local place, uses = string.match(call('HGET', P .. 'limits:reserved', entry) or '', '^([^\t]*)\t(.*)$')
    if not place then return end
    call('HDEL', P .. 'limits:reserved', entry)
    return place, cjson.decode(uses)
  end

  -- The entry was not started: its share has not had the turn.
  function made.refund(queue, place)
    local _, cost, share = split(place)
    if share == '' then return end
    local base, back = 'turns:' .. queue, '-' .. cost
    if call('ZSCORE', P .. base .. ':passes:' .. queue, share) then
      call('ZINCRBY', P .. base .. ':passes:' .. queue, back, share)
    end
    for _, group in ipairs(groups_of(base, queue)) do
      if call('ZSCORE', lanes_of(base, group), share) then call('ZINCRBY', lanes_of(base, group), back, share) end
    end
  end

  -- The entry leaves its queue, wherever it is. Whether it was being claimed, and what it held then.
  function made.leave(queue, kind, place, entry)
    if h_get('reservations', entry) then
      put(zsets, 'reserved', entry, false)
      put(hashes, 'reservations', entry, false)
      local _, uses = made.end_reservation(entry)
      prepaid[entry] = uses and true
      return uses
    end
    if remove(entry) then return end
    if tonumber(place) then put(zsets, 'ready:' .. queue .. ':' .. kind, entry, false) end
    put(zsets, tonumber(place) and 'due' or 'due:shared', table.concat({place, queue, kind, entry}, '\t'), false)
    put(zsets, 'queued', entry, false)
  end

  function made.pay(queue, entry, place)
    local _, cost, share = split(place)
    if share ~= '' and not prepaid[entry] then charge('turns:' .. queue, queue, share, tonumber(cost)) end
  end

  function made.may_start(entry)
    return string.find(call('HGET', P .. 'waiting', entry) or '', 'turns:', 1, true) == 1
  end

  -- The first task of the share whose turn it is: {queue, kind, place, entry, rank}.
  function made.next_turn(queue, names)
    local base, best = 'turns:' .. queue, nil
    for _, kind in ipairs(names) do
      local group = '0\t' .. queue .. '\t' .. kind
      local lane = call('ZRANGE', lanes_of(base, group), 0, 0, 'WITHSCORES')
      local first = lane[1] and call('ZRANGE', tasks_of(base, group, lane[1]), 0, 0, 'WITHSCORES') or {}
      if first[1] then
        local found = {tonumber(lane[2]), lane[1], tonumber(first[2]), first[1], kind}
        local is_first = best == nil
        for i = 1, best and 4 or 0 do
          if found[i] ~= best[i] then
            is_first = found[i] < best[i]
            break
          end
        end
        if is_first then best = found end
      end
    end
    if not best then return end
    local cost = string.match(call('HGET', P .. 'waiting', best[4]) or '', '([^\t]*)\t[^\t]*$') or '1'
    local rank = string.format('%.0f', best[3])
    return {queue, best[5], rank .. ' ' .. cost .. ' ' .. best[2], best[4], math.abs(best[3]) <= 1000 and best[3] or 0}
  end

  -- Wake what time, or an operator, has made room for. A time past every window was planned by a wrong clock.
  function made.wake_due()
    local due, wakes = call('ZRANGEBYSCORE', P .. 'limits:wakes', '-inf', '(' .. NOW, 'LIMIT', 0, WAKES), P .. 'limits:wakes'
    local wrong = string.format('%.17g', now + 2 * LONGEST)
    for _, key in ipairs(call('ZRANGEBYSCORE', wakes, '(' .. wrong, '+inf', 'LIMIT', 0, WAKES)) do due[#due + 1] = key end
    for _, key in ipairs(due) do
      local window = window_of(key)
      if wake(key, WOKEN) == WOKEN then
        call('ZADD', wakes, 0, key)
      else
        local first = window > 0 and call('EXISTS', P .. parked(key)) == 1 and oldest(key, window)
        if first then call('ZADD', wakes, string.format('%.17g', first + window), key) else call('ZREM', wakes, key) end
      end
      forget_if_unused(key)
    end
  end

  -- An entry is gone that nobody could read, and so could not tell its limits: whatever is parked may have room.
  function made.look_at_all()
    for _, key in ipairs(call('ZRANGE', P .. 'limits:keys', 0, WOKEN)) do
      if call('EXISTS', P .. parked(key)) == 1 then call('ZADD', P .. 'limits:wakes', 0, key) end
    end
  end

  function made.promote(batch)
    for _, delayed in ipairs(call('ZRANGEBYSCORE', P .. 'due:shared', '-inf', NOW, 'LIMIT', 0, batch)) do
      local place, queue, kind, entry = string.match(delayed, '^([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$')
      make_ready(queue, kind, place, entry)
      put(zsets, 'due:shared', delayed, false)
      put(zsets, 'queued', entry, false)
    end
    made.wake_due()
  end

  -- Operators.

  function made.set(name, most)
    if most == '' then call('HDEL', P .. 'limits', name) else call('HSET', P .. 'limits', name, most) end
    in_force = {}
    local function look_at(from, to)
      for _, key in ipairs(call('ZRANGEBYLEX', P .. 'limits:keys', from, to)) do
        if call('EXISTS', P .. parked(key)) == 1 then call('ZADD', P .. 'limits:wakes', 0, key) end
      end
    end
    look_at('[' .. name, '[' .. name)
    look_at('[' .. name .. '=', '(' .. name .. '>')
  end

  function made.trim(key)
    call('ZREMRANGEBYSCORE', starts(key), '-inf', '(' .. string.format('%.17g', now - LONGEST))
    forget_if_unused(key)
  end

  return made
end

local limit_functions

limits = function()
  limit_functions = limit_functions or limit_library()
  return limit_functions
end
