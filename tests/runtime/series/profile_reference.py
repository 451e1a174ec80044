"""The profile of a local day and week, or of a year of daily rows, with dictionaries; see `profile_numba.py`."""

import math

DAY, WEEK, YEAR = 86_400, 604_800, 365.2425 * 86_400


class Profile:
    """Of rows `unit` seconds apart; `moment` is local time in seconds since 1970."""

    def __init__(self, unit):
        self.is_yearly = unit == DAY
        self.bins = 366 if self.is_yearly else min(round(DAY / unit), 1440)
        self.rows = 90 if self.is_yearly else 7 * self.bins
        self.day, self.last, self.week = {}, {}, {}
        self.level = self.error = self.count = 0
        self.errors, self.began, self.first, self.before = {}, None, None, None
        self.week_last, self.visited, self.recurring = {}, None, 0.0

    def bin(self, moment):
        if self.is_yearly:
            return int(moment // DAY * DAY % YEAR * 366 / YEAR)
        return round(moment % DAY * self.bins / DAY) % self.bins

    def slot(self, moment):
        slots = 1 if self.is_yearly else min(self.bins, 48)
        return (moment // DAY + 3) % 7, int(moment % DAY * slots / DAY)

    def expected_day(self, moment):
        k, around = self.bin(moment), 7 if self.is_yearly else 0
        near = [self.day[i % self.bins] for i in range(k - around, k + around + 1) if i % self.bins in self.day]
        return sum(near) / len(near) if near else math.nan

    def share(self, moment):
        without, with_weekday, _ = self.errors.get((moment // DAY + 3) % 7, (0.0, 0.0, 0))
        if moment - self.began < WEEK or not without:
            return 0.0
        return without**8 / (without**8 + with_weekday**8)

    def expected(self, moment):
        return self.expected_day(moment) + self.share(moment) * self.week.get(self.slot(moment), 0.0)

    def forecast(self, moment):
        return self.first + self.expected(moment) + self.level

    def add(self, moment, value, is_odd=False):
        if self.began is None:
            self.began, self.first = moment, value
        k, slot = self.bin(moment), self.slot(moment)
        if k == self.before:
            return
        self.before = k
        if is_odd and k not in self.day:
            return
        is_known = self.count >= (20 if self.is_yearly else max(self.bins, 20)) and self.error > 0
        bound = 4 * self.error if is_known else math.inf
        share, weekday, day = self.share(moment), self.week.get(slot, 0.0), self.expected_day(moment)
        rest = value - self.first - self.level
        self.learn_bin(k, rest - share * weekday, bound, moment)
        if math.isnan(day):
            return
        without = rest - day
        if weeks := (moment - self.began) // WEEK:
            means = self.errors.setdefault(slot[0], [0.0, 0.0, 0])
            means[2] += 1
            for which in (0, 1):
                size = min(abs(without - which * weekday), bound)
                means[which] += (size - means[which]) / min(means[2], 2 * self.rows / 7)
        self.learn_week(slot, without - weekday, bound, weeks)
        error = min(max(without - share * weekday, -bound), bound)
        self.count += 1
        self.error += (abs(error) - self.error) / min(self.count, self.rows)
        self.level += error / self.rows

    def learn_bin(self, k, own, bound, moment):
        if k not in self.day:
            self.day[k], self.last[k] = own, 0.0
            return
        error, last = own - self.day[k], self.last[k]
        if min(abs(error), abs(last)) > bound and error * last > 0:
            move = min(error, last, key=abs)
        else:
            cycles = (moment - self.began) // (YEAR if self.is_yearly else DAY)
            move = max(0.12, 1 / (cycles + 1)) * min(max(error, -bound), bound)
        self.day[k] += move
        self.last[k] = error - move

    def learn_week(self, slot, error, bound, weeks):
        if slot != self.visited:
            last = self.week_last.get(slot, 0.0)
            self.recurring = last if min(abs(error), abs(last)) > bound and error * last > 0 else 0.0
            self.visited, self.week_last[slot] = slot, error
        gain, bound = (1, abs(self.recurring)) if self.recurring else (max(0.25, 1 / (weeks + 1)), bound)
        values = max((1 if self.is_yearly else self.bins) / 48, 1)
        self.week[slot] = self.week.get(slot, 0.0) + gain * min(max(error, -bound), bound) / values
